"""Click logs to a batch: a simulation with a known position bias, the estimators against plain loops, what a log may look like."""

import csv
import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from flows.batches.foreseen import Settings
from flows.batches.known import Known
from flows.batches.records import files_of, judgments
from flows.feedback.clicks import Rule, read, take_in
from flows.feedback.propensity import comparisons, harvest, power_law, relevance, relevance_error
from flows.intake.gate import check
from tasks.core.errors import UserError
from tasks.core.statistics.judged import click_id
from tasks.core.text.plain import is_dev

RANKS, ETA = 8, 1.1


def simulate(path: Path, searches: int, queries: int = 40, seed: int = 0) -> dict[tuple[str, str], float]:
    """A log under the position-based model, p_k = 1 / k^ETA; two rankers, each wrong in its own way, so documents change ranks."""
    draw = random.Random(seed)
    relevant = {(f"query {q}", f"d{q}-{d}"): draw.choice([0.1, 0.3, 0.6, 0.9]) for q in range(queries) for d in range(RANKS)}
    rankings = {}
    for query in dict.fromkeys(query for query, _ in relevant):
        docs = [doc for other, doc in relevant if other == query]
        rankings[query] = [draw.sample(docs, len(docs)) for _ in range(2)]
    with path.open("w") as handle:
        for _ in range(searches):
            query = f"query {draw.randrange(queries)}"
            shown = draw.choice(rankings[query])
            clicked = [doc for rank, doc in enumerate(shown, 1) if draw.random() < rank**-ETA * relevant[query, doc]]
            handle.write(json.dumps({"query": query, "shown": shown, "clicked": clicked}) + "\n")
    return relevant


def test_a_known_bias_is_measured_and_the_order_of_relevance_comes_back(tmp_path: Path) -> None:
    relevant = simulate(tmp_path / "log.jsonl", 40_000)
    log = read(tmp_path / "log.jsonl")
    assert log.searches == 40_000
    propensities = harvest(log.counts, RANKS, 1.0)
    assert propensities.measured == tuple(range(1, RANKS + 1))
    for rank in propensities.measured:
        assert propensities.values[rank] == pytest.approx(rank**-ETA, rel=0.1)
    assert propensities.eta == pytest.approx(ETA, abs=0.05)
    pairs = list(relevant)
    true = [relevant[pair] for pair in pairs]
    unbiased = [relevance(log.counts[pair], propensities, 100.0) for pair in pairs]
    raw = [relevance(log.counts[pair], power_law(RANKS, 0), 100.0) for pair in pairs]
    assert spearmanr(true, unbiased).statistic > 0.95

    def misordered_share(estimate: list[float]) -> float:
        """The share of pairs of one query, one more relevant, that come in the wrong order."""
        value = dict(zip(pairs, estimate, strict=True))
        unequal = [(a, b) for a in pairs for b in pairs if a[0] == b[0] and relevant[a] > relevant[b]]
        return sum(value[a] <= value[b] for a, b in unequal) / len(unequal)

    assert misordered_share(unbiased) < 0.03 < 0.08 < misordered_share(raw)
    assert abs(sum(unbiased) - sum(true)) / len(true) < 0.02, "unbiased"
    assert abs(sum(raw) - sum(true)) / len(true) > 0.2


def test_the_estimators_equal_plain_loops() -> None:
    draw = random.Random(3)
    counts: dict[Any, Any] = {}
    for query in range(30):
        for rank in draw.sample(range(1, 5), 3):
            shown = draw.randrange(20, 60)
            counts.setdefault((f"q{query}", "d"), {})[rank] = (shown, draw.randrange(5, shown))
    pairs = comparisons(counts)
    assert min(one + other for one, other in pairs.values()) > 20
    for first in range(1, 5):
        for second in range(first + 1, 5):
            one = other = 0.0
            for by_rank in counts.values():
                if first in by_rank and second in by_rank:
                    (n1, c1), (n2, c2) = by_rank[first], by_rank[second]
                    one += c1 / n1 * (n1 * n2 / (n1 + n2))
                    other += c2 / n2 * (n1 * n2 / (n1 + n2))
            assert pairs[first, second] == pytest.approx((one, other))
    propensities = harvest(counts, 4, 1.0)

    def loss(logs: dict[int, float]) -> float:
        smoothed = {ranks: (one + 0.5, other + 0.5) for ranks, (one, other) in pairs.items()}
        return sum((logs[a] - logs[b] - math.log(one / other)) ** 2 / (1 / one + 1 / other) for (a, b), (one, other) in smoothed.items())

    best = {rank: math.log(propensities.values[rank]) for rank in range(1, 5)}
    assert best[1] == 0
    for rank in range(2, 5):
        for step in (-1e-3, 1e-3):
            assert loss(best | {rank: best[rank] + step}) > loss(best), "the minimum of the weighted squares"
    by_rank = counts["q0", "d"]
    by_hand = sum(count * min(1 / propensities.values[rank], 1.5) for rank, (_, count) in by_rank.items()) / sum(
        n for n, _ in by_rank.values()
    )
    assert relevance(by_rank, propensities, 1.5) == pytest.approx(by_hand)
    variance = sum(count * min(1 / propensities.values[rank], 1.5) ** 2 for rank, (_, count) in by_rank.items())
    assert relevance_error(by_rank, propensities, 1.5) == pytest.approx(math.sqrt(variance) / sum(n for n, _ in by_rank.values()))


def test_ranks_that_nothing_connects_follow_the_power_law() -> None:
    counts = {("q", "a"): {1: (100, 80), 2: (100, 40)}, ("q", "b"): {5: (100, 80), 6: (100, 20)}, ("q", "c"): {1: (9, 9), 3: (9, 1)}}
    propensities = harvest(counts, 6, 1.0)
    assert propensities.measured == (1, 2)
    assert propensities.values[2] == pytest.approx(20.5 / 40.5)
    assert propensities.eta == pytest.approx(math.log(40.5 / 20.5, 2))
    assert propensities.values[6] == pytest.approx(6**-propensities.eta)
    assert harvest({("q", "a"): {1: (9, 9)}}, 3, 0.5) == power_law(3, 0.5)


def test_a_comparison_counts_whatever_its_rarer_side_has() -> None:
    """Clicks of both sides together decide: a rank that nobody clicks on is measured, too, as one that is rarely looked at."""
    propensities = harvest({("q", "a"): {1: (100, 40), 2: (100, 0)}}, 2, 1.0)
    assert (propensities.measured, propensities.values[2]) == ((1, 2), pytest.approx(0.5 / 20.5))
    assert harvest({("q", "a"): {1: (100, 39), 2: (100, 0)}}, 2, 1.0).measured == ()


def test_small_logs_give_no_higher_propensities_than_there_are() -> None:
    """200 pairs, up to three ranks each. With ten clicks on either side asked for, few ranks were measured, 1.18 times too high."""
    draw, ratios = random.Random(1), list[float]()
    for _ in range(60):
        counts: dict[Any, dict[int, tuple[int, int]]] = {}
        for pair in range(200):
            looks, start = draw.betavariate(1, 3), draw.randint(1, 10)
            for _ in range(3):
                rank = min(10, max(1, int(start + draw.gauss(0, 3))))
                shown, clicked = counts.setdefault(("q", str(pair)), {}).get(rank, (0, 0))
                counts["q", str(pair)][rank] = (shown + 5, clicked + sum(draw.random() < looks / rank for _ in range(5)))
        propensities = harvest(counts, 10, 1.0)
        ratios += [propensities.values[rank] * rank for rank in propensities.measured if rank > 1]
    assert len(ratios) > 60
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) == pytest.approx(1, abs=0.1)


LINES = [
    {"query": "Red  shoes", "shown": ["a", "b", "c"], "clicked": ["b"]},
    {"query": "red shoes", "shown": ["b", "a"], "position": 2},
    {"query": "blue", "shown": ["c", "a"], "clicked": []},
    {"query": "blue", "shown": ["c", "a"], "position": [1, 2]},
]
COUNTS = {
    ("red shoes", "a"): {1: (1, 0), 2: (1, 1)},
    ("red shoes", "b"): {1: (1, 0), 2: (1, 1)},
    ("red shoes", "c"): {3: (1, 0)},
    ("blue", "c"): {1: (2, 1)},
    ("blue", "a"): {2: (2, 1)},
}


def test_three_forms_of_one_log(tmp_path: Path) -> None:
    plain, table, server = tmp_path / "log.jsonl", tmp_path / "log.csv", tmp_path / "server.jsonl"
    plain.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    table.write_text('query,shown,clicked,position\nRed  shoes,a b c,b,\nred shoes,b a,,2\nblue,"[""c"", ""a""]",,\nblue,c a,,1 2\n')
    events: list[dict[str, Any]] = []
    for number, line in enumerate(LINES):
        events.append({"event": "search", "id": str(number), "time": 1.5, "query": line["query"], "shown": line["shown"], "model": "m"})
    events.append({"event": "click", "id": "0", "doc": "b", "position": 2})
    events += [{"event": "click", "id": "1", "doc": "a"}, {"event": "click", "id": "1", "doc": "a", "position": 2}]
    events += [{"id": "3", "position": 1, "doc": "c"}, {"id": "3", "position": 2, "doc": "a"}]
    server.write_text("".join(json.dumps(line) + "\n" for line in events))
    excel = tmp_path / "excel.csv"
    excel.write_text(
        '\ufeffquery;shown;clicked;position\r\nRed  shoes;a b c;b;\r\nred shoes;b a;;2\r\nblue;["c", "a"];;\r\nblue;c a;;1 2\r\n'
    )
    with_separator = tmp_path / "told.csv"
    with_separator.write_text(f"\ufeffsep=;\r\n{excel.read_text().removeprefix(chr(0xFEFF))}")
    for file in (plain, table, excel, with_separator, server):
        log = read(file)
        assert (log.searches, log.skipped, log.counts) == (4, 0, COUNTS), file.name
        assert log.texts == {"red shoes": "Red shoes", "blue": "blue"}


def test_lines_that_make_no_sense_are_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    invalid = [
        '{"query": "x", "shown": ["a"], "clicked": ["b"]}',
        '{"query": "x", "shown": ["a"], "position": 2}',
        '{"event": "click", "id": 7}',
        '{"query": "x", "shown": ["a", "b"], "position": 2, "doc": "a"}',
    ]
    invalid += [
        '{"query": " ", "shown": ["a"]}',
        '{"query": "x", "shown": []}',
        '{"query": "x", "shown": ["a", "a"]}',
        '{"query": "x", "shown": [null, "a", "b"], "position": 2}',
        '{"query": "x", "shown": [true, "a"], "clicked": ["a"]}',
        '{"query": "x", "shown": [7.0, 8], "position": 1}',
        '{"query": "x", "shown": ["a", {"id": "b"}], "position": 1}',
        '{"query": "x", "shown": ["a", "b"], "position": [1, null]}',
        '{"query": "x", "shown": ["a", "b"], "clicked": ["a", null]}',
        '{"query": "x", "shown": ["my doc", "my"], "doc": "my doc my"}',
        '{"query": "x", "shown": "[a b", "position": 1}',
        '{"query": "half \\ud800", "shown": ["a"], "clicked": ["a"]}',
        '{"query": "x", "shown": ["a", "\\udfff"], "clicked": ["a"]}',
        "[]",
        json.dumps({"query": "x", "shown": "[" * 200_000}),
        '{"query": "cut',
    ]
    file.write_text("\n".join([json.dumps(LINES[0]), *invalid]))
    log = read(file)
    assert (log.searches, log.skipped) == (1, len(invalid))
    assert log.first == f"{file}:2: found a click on 'b', expected one of those shown"


def test_an_item_that_is_no_id_shifts_no_position(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"query": "x", "shown": ["a", 7.0, "b"], "position": 2}\n')
    log = read(tmp_path / "log.jsonl")
    assert (log.searches, log.counts) == (0, {})
    assert log.first == f"{tmp_path}/log.jsonl:1: found 7.0 in shown, expected strings or integers"


@pytest.mark.parametrize("doc", ["my doc 1", "[x](y)", '["a"]', "7"])
def test_one_id_as_a_text_is_not_taken_apart(tmp_path: Path, doc: str) -> None:
    shown = ["a", "my", doc]
    search = {"event": "search", "id": "1", "query": "x", "shown": shown}
    (tmp_path / "clicked.jsonl").write_text(json.dumps({"query": "x", "shown": shown, "clicked": doc}) + "\n")
    (tmp_path / "server.jsonl").write_text(f"{json.dumps(search)}\n{json.dumps({'event': 'click', 'id': '1', 'doc': doc})}\n")
    with (tmp_path / "log.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["query", "shown", "clicked"], ["x", json.dumps(shown), doc]])
    with (tmp_path / "doc.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["query", "shown", "doc"], ["x", json.dumps(shown), doc]])
    for file in tmp_path.iterdir():
        log = read(file)
        assert (log.skipped, log.counts["x", doc], log.counts["x", "a"]) == (0, {3: (1, 1)}, {1: (1, 0)}), file.name


def test_a_document_that_qrels_cannot_name_is_left_out_alone(tmp_path: Path) -> None:
    shown = ["a\tb", "c"]
    lines = [{"event": "search", "id": "1", "query": "x", "shown": shown}, {"event": "click", "id": "1", "position": 2}]
    lines += [{"event": "search", "id": "2", "query": "x", "shown": shown}, {"event": "click", "id": "2", "position": 1}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = take_in(tmp_path / "log.jsonl", tmp_path / "batch", Rule(min_impressions=1))
    assert (outcome.log.searches, outcome.log.skipped) == (2, 0)
    assert [(judgment.doc, judgment.grade) for judgment in judgments(files_of(tmp_path / "batch"), "train", pytest.fail)] == [("c", 1)]
    assert outcome.left_out == {"of documents with tabs or line ends in their ids": 1}
    assert outcome.log.counts["x", "c"] == {2: (2, 1)}, "ranks stay as they were shown"


def test_a_batch_that_the_gate_lets_in(tmp_path: Path) -> None:
    simulate(tmp_path / "log.jsonl", 3000, queries=30)
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    docs = [f"d{q}-{d}" for q in range(29) for d in range(RANKS)]
    (data / "corpus.jsonl").write_text("".join(json.dumps({"_id": doc, "text": doc}) + "\n" for doc in docs))
    by_hash = {held: next(n for n in range(29) if is_dev(f"query {n}", 0.3) == held) for held in (False, True)}
    (data / "queries.jsonl").write_text(
        f'{{"_id": "t1", "text": "Query  {by_hash[False]}"}}\n{{"_id": "t2", "text": "query {by_hash[True]}"}}\n'
    )
    (data / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nt1\td0-0\t1\n")
    (data / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nt2\td0-0\t1\n")
    known = Known(10)
    known.add(data)
    rule = Rule(dev_share=0.3, max_weight=5.0)
    outcome = take_in(tmp_path / "log.jsonl", tmp_path / "batch", rule, known=known)
    assert set(outcome.pairs) == {"train", "dev"}
    assert set(outcome.left_out) >= {"of documents that the data set lacks", "of queries that the data set has in another split"}
    assert not check(tmp_path / "batch", known, Settings(), size=10).findings.reasons()
    train = list(judgments(files_of(tmp_path / "batch"), "train", pytest.fail))
    dev = list(judgments(files_of(tmp_path / "batch"), "dev", pytest.fail))
    for judgment in train:
        query = next(query for query in outcome.log.texts if click_id(query) == judgment.query)
        assert judgment.weight == pytest.approx(relevance(outcome.log.counts[query, judgment.doc], outcome.propensities, 5.0), rel=1e-5)
    assert {judgment.grade for judgment in train + dev} == {1}
    assert click_id(f"query {by_hash[False]}") not in {judgment.query for judgment in train}, "held out by the data set"
    held = {judgment.query for judgment in dev}
    assert held == {click_id(query) for query in outcome.log.texts if is_dev(query, 0.3)} - {
        click_id("query 29"),
        click_id(f"query {by_hash[True]}"),
    }
    assert json.loads((tmp_path / "batch/propensities.json").read_text())["searches"] == 3000
    with pytest.raises(UserError, match="batch: already exists"):
        take_in(tmp_path / "log.jsonl", tmp_path / "batch", rule)
    (tmp_path / "unclicked.jsonl").write_text('{"query": "a", "shown": ["d1"], "clicked": []}\n')
    with pytest.raises(UserError, match=r"unclicked.jsonl: found searches but no clicks, expected clicked or position in some lines"):
        take_in(tmp_path / "unclicked.jsonl", tmp_path / "other", rule)
    with pytest.raises(UserError, match=r"no pair .* is left \(\d+ seen or clicked too rarely\); lower --min-impressions"):
        take_in(tmp_path / "log.jsonl", tmp_path / "other", Rule(min_impressions=10_000))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("shown", "clicked", "rank", "kept"),
    [(20, 1, 1, False), (20, 7, 1, True), (100, 30, 1, True), (20, 1, 10, False), (100, 2, 10, False), (5, 5, 1, True), (100, 5, 10, True)],
)
def test_dev_has_what_is_surely_relevant(tmp_path: Path, shown: int, clicked: int, rank: int, kept: bool) -> None:
    """Estimate less error, at 1 / rank: a click in 20 at rank 10 is a relevance of 0.5 with an error of 0.5; 5 in 100 of 0.5 with 0.22."""
    docs = [f"d{number}" for number in range(1, rank + 1)]
    lines = [{"query": "q", "shown": docs, "clicked": [docs[-1]] if number < clicked else []} for number in range(shown)]
    lines += [{"query": "sure", "shown": ["s"], "clicked": ["s"]}] * 20
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = take_in(tmp_path / "log.jsonl", tmp_path / "batch", Rule(method="power", dev_share=1.0))
    dev = {(judgment.query, judgment.doc) for judgment in judgments(files_of(tmp_path / "batch"), "dev", pytest.fail)}
    assert dev == {(click_id("sure"), "s"), *([(click_id("q"), docs[-1])] if kept else [])}
    assert outcome.left_out == ({} if kept else {"of dev, not surely relevant": 1})
    train = take_in(tmp_path / "log.jsonl", tmp_path / "train", Rule(method="power"))
    assert (train.pairs, train.left_out) == ({"train": 2}, {}), "training has them all, by weight"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("log.jsonl", "", "found no search, expected lines with query, shown and clicked"),
        ("log.jsonl", "x\n", "found no search (FILE:1: found no JSON object)"),
        (
            "log.jsonl",
            json.dumps({"event": "search", "id": "1", "query": f"blake2b:{'0f' * 16}", "shown": ["a"]}),
            "found no search (FILE:1: found a hashed query, expected its text, as retemper serve --log-queries plain writes it)",
        ),
        ("log.csv", "query,shown,clicked,clicked\na,b c,b,c\n", "FILE:1: found column clicked 2 times, expected it once"),
        ("log.csv", "query,clicked\na,b\n", "FILE:1: no column shown, expected query, shown"),
        ("log.csv", "query;shown,clicked\na;b\n", "FILE:1: found commas and semicolons in the header"),
        (
            "log.csv",
            'query,shown\na,d1\n"b\nb",d1\n"c,d1\nd,d1\n',
            "FILE:5: cannot be read (unexpected end of data), expected CSV in",
        ),
        (
            "log.csv",
            'query,shown\n"b" c,d1\n',
            "FILE:2: cannot be read (',' expected after '\"'), expected CSV in the row that begins here",
        ),
        ("none", None, "FILE: not found, expected a click log"),
    ],
)
def test_logs_that_cannot_be_read(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    path = tmp_path / file
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as refusal:
        take_in(path, tmp_path / "batch", Rule())
    assert message.replace("FILE", str(path)) in str(refusal.value)
    assert not (tmp_path / "batch").exists()


def test_a_corrupt_gzip_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    packed = gzip.compress(b"query,shown\n" * 9)
    path.write_bytes(packed[:10] + b"\xff" + packed[11:])
    with pytest.raises(UserError, match=rf"^{path}: cannot be read \(.*\), expected CSV in UTF-8, gzip if its name ends in .gz$"):
        read(path)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(eta=2000), "--eta: found 2000, expected a number from 0 to 10"),
        (Rule(method="power", eta=math.nan), "--eta: found nan, expected"),
        (Rule(max_weight=math.inf), "--max-weight: found inf, expected a number from 0 to 1,000,000"),
        (Rule(dev_share=math.nan), "--dev-share: found nan, expected a number from 0 to 1"),
    ],
)
def test_settings_beyond_what_floats_hold_are_refused(tmp_path: Path, rule: Rule, message: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"query": "a", "shown": ["d1", "d2"], "clicked": ["d2"]}\n' * 9)
    with pytest.raises(UserError, match=message):
        take_in(tmp_path / "log.jsonl", tmp_path / "batch", rule)
    assert not (tmp_path / "batch").exists()
