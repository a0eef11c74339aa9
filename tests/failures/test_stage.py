"""The stage from systems' results to groups, worst queries, and suspects; wrong names are refused."""

import csv
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.lexical.build import build, save
from tasks.core.lexical.params import BM25
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.statistics.judged import click_id
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import COLUMNS, DOCUMENTS, QRELS, QUERIES
from tasks.core.text.analysis import analyzer
from tasks.failures.queries import Words
from tasks.failures.worst import matched_words

CLICK_1 = click_id("1")

ROUNDS = (
    "rounds: {warmup: {init: base, negatives: bm25}, star: {init: warmup, negatives: bm25}}\nfuse: {hybrid: {first: bm25, second: star}}"
)
TEXTS = {"d1": "Cats sleep all day.", "d2": "A dog barks at night.", "d3": "Birds sing early.", "d4": "Fish swim."}
QUESTIONS = {"q1": "what does a cat do all day", "q2": "who barks at night?", "q3": "singing birds", "q4": 'fish, "swim"'}
RELEVANT = {"q1": {"d1": 1}, "q2": {"d2": 2, "d3": 0}, "q3": {"d3": 1}, "q4": {"d4": 1}}
RUNS = {  # by system, the documents of q1 to q4
    "bm25": ["d1 d2", "d2 d1", "d3 d4", "d4 d1"],
    "warmup": ["d2 d1", "d1 d2", "d1 d3", "d4 d2"],
    "star": ["d3 d2 d1", "d1 d2", "d3 d1", "d4 d2"],
    "hybrid": ["d3 d2 d1", "d1 d2", "d3 d1", "d4 d2"],
}


def write_rows(path: Path, schema: pa.Schema, values: list[tuple[Any, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, schema, [pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)])


def reciprocal_rank(ranked: str, query: str) -> float:
    hits = [rank for rank, doc in enumerate(ranked.split(), 1) if RELEVANT[query].get(doc, 0) > 0]
    return 1 / hits[0] if hits else 0.0


@pytest.fixture(autouse=True)
def _results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four systems over four queries; dev and test have the same."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("corpus/documents.parquet"), DOCUMENTS, [(doc, f"title {doc}", text) for doc, text in TEXTS.items()])
    for split in ("dev", "test"):
        write_rows(Path(f"corpus/queries/{split}.parquet"), QUERIES, [(query, text, []) for query, text in QUESTIONS.items()])
        judged = [(query, doc, grade) for query, docs in RELEVANT.items() for doc, grade in docs.items()]
        write_rows(Path(f"corpus/qrels/{split}.parquet"), QRELS, judged)
    for name, lists in RUNS.items():
        values = {query: reciprocal_rank(ranked, query) for query, ranked in zip(RELEVANT, lists, strict=True)}
        for split in ("dev", "test"):
            schema = pa.schema([("query", pa.string()), ("RR", pa.float64())])
            write_rows(Path(f"values/{name}/{split}.parquet"), schema, list(values.items()))
            lines = [
                f"{q} Q0 {doc} {rank} {-rank} {name}\n"
                for q, docs in zip(RELEVANT, lists, strict=True)
                for rank, doc in enumerate(docs.split(), 1)
            ]
            Path(f"runs/{name}").mkdir(parents=True, exist_ok=True)
            Path(f"runs/{name}/{split}.trec").write_text("".join(lines))
        mean = sum(values.values()) / len(values)
        write_json(Path(f"metrics/{name}.json"), {split: {"RR": mean} for split in ("dev", "test")})
    params = BM25()
    for folder in ("index", "postings"):
        Path(folder).mkdir()
    terms = analyzer(params.stemmer, params.stopwords)
    save(Path("index"), build(TEXTS.values(), terms, params, Path("postings")), [pa.array(list(TEXTS))], params)


def run(monkeypatch: pytest.MonkeyPatch, report: str = "draws: groups", **failures: Any) -> dict[str, Any]:
    Path("params.yaml").write_text(
        f"failures: {json.dumps({'least_queries': 2, 'bins': 2} | failures)}\nreport: {{metric: RR, {report}}}\ntext: {{}}\n{ROUNDS}\n"
    )
    freeze_parameters(Path())
    arguments = "--metrics metrics --values values --runs runs --corpus corpus --index index --out failures"
    monkeypatch.setattr(sys, "argv", ["failures", *arguments.split()])
    import_module("tasks.failures.__main__").main()
    return {name: json.loads(Path(f"failures/{name}.json").read_text()) for name in ("groups", "worst")}


def test_groups_worst_queries_and_what_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(monkeypatch, model="star")
    assert (report["groups"]["model"], report["groups"]["against"]) == ("star", "bm25")
    dev = report["groups"]["splits"]["dev"]
    assert {group["dimension"] for group in dev} == {"words", "rarity (mean idf)", "question word"}
    by_word = {group["name"]: group for group in dev if group["dimension"] == "question word"}
    assert {name: group["queries"] for name, group in by_word.items()} == {"what": 1, "who": 1, "none": 2}
    assert (by_word["what"]["model"], by_word["what"]["against"]) == (pytest.approx(1 / 3), 1)
    assert report["groups"]["splits"]["test"] == dev

    worst = report["worst"]
    assert worst["split"] == "dev", "test is not looked at where there is dev"
    assert [entry["query"] for entry in worst["queries"]] == ["q1", "q2"], "the largest loss first; equal queries are left out"
    first = worst["queries"][0]
    assert first["relevant"][0] == {"id": "d1", "title": "title d1", "text": TEXTS["d1"], "matched": ["all", "cat", "day"]}
    assert first["systems"]["star"]["first"]["id"] == "d3"
    assert first["systems"]["star"]["first"]["matched"] == []
    assert [first["systems"][name]["rank"] for name in ("star", "bm25")] == [3, 1]
    assert [first["systems"][name]["relevant"] for name in ("star", "bm25")] == [False, True]
    output = capsys.readouterr().out
    assert "RR on dev by groups of queries" in output
    assert "failures/suspects/dev.csv" in output


def test_queries_about_one_document_are_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four share d1, so nothing can be tested; each alone, the two of a group can."""
    for split in ("dev", "test"):
        write_rows(
            Path(f"corpus/qrels/{split}.parquet"), QRELS, [(query, doc, 1) for query in RELEVANT for doc in {**RELEVANT[query], "d1": 1}]
        )
    lows = {}
    for draws in ("groups", "queries"):
        groups = run(monkeypatch, report=f"draws: {draws}", model="star")["groups"]["splits"]["dev"]
        lows[draws] = [group["low"] for group in groups if group["p_holm"] is not None]
    assert lows["groups"] and set(lows["groups"]) == {None}
    assert any(low is not None for low in lows["queries"])


def test_suspects_are_unjudged_and_ranked_high_by_several_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, suspect_depth=2, suspect_systems=2)
    with Path("failures/suspects/dev.csv").open(newline="") as handle:
        suspects = list(csv.DictReader(handle))
    expected = {}
    for place, query in enumerate(RELEVANT):  # a plain loop; hybrid is made of others' runs
        for doc in TEXTS:
            ranks = {
                name: RUNS[name][place].split()[:2].index(doc) + 1
                for name in ("bm25", "star", "warmup")
                if doc in RUNS[name][place].split()[:2]
            }
            if len(ranks) >= 2 and doc not in RELEVANT[query]:
                expected[query, doc] = sum(1 / rank for rank in ranks.values())
    assert {(row["query-id"], row["corpus-id"]) for row in suspects} == set(expected)
    assert [(row["query-id"], row["corpus-id"]) for row in suspects] == sorted(expected, key=lambda pair: (-expected[pair], pair))
    assert {row["score"] for row in suspects} == {""}
    assert [row["query"] for row in suspects if row["query-id"] == "q4"] == ['fish, "swim"'], "quotes and commas survive"
    run(monkeypatch, suspects=1)
    assert len(Path("failures/suspects/dev.csv").read_text().splitlines()) == 2


def test_no_suspect_is_of_a_query_of_a_click_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged for one decides nothing, and most of what systems find for it is unjudged."""

    def suspects() -> list[tuple[str, str]]:
        run(monkeypatch, suspect_depth=2, suspect_systems=2)
        with Path("failures/suspects/dev.csv").open(newline="") as handle:
            return [(row["query-id"], row["corpus-id"]) for row in csv.DictReader(handle)]

    before = suspects()
    for path in Path().glob("*/**/dev.*"):
        if path.suffix == ".trec":
            path.write_text(path.read_text().replace("q1 Q0", f"{CLICK_1} Q0"))
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            rows = [tuple(CLICK_1 if cell == "q1" else cell for cell in row.values()) for row in table.to_pylist()]
            write_rows(path, table.schema, rows)
    assert "q1" in dict(before) and suspects() == [pair for pair in before if pair[0] != "q1"]


def test_the_level_of_intervals_is_not_rounded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, model="star", alpha=0.001)
    assert "groups of queries, 99.9% intervals of the difference\n" in capsys.readouterr().out


def test_texts_without_blanks_are_shortened_and_not_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at its last blank, the text would be one word: a person could not judge it."""
    text = "東京 " + "語" * 1400
    write_rows(Path("corpus/documents.parquet"), DOCUMENTS, [(doc, "", text) for doc in TEXTS])
    write_rows(Path("corpus/queries/dev.parquet"), QUERIES, [(query, 100 * text, []) for query in QUESTIONS])
    entries = run(monkeypatch, model="star", suspect_depth=2, suspect_systems=2)["worst"]["queries"]
    with Path("failures/suspects/dev.csv").open(newline="") as handle:
        shown = [row[name] for row in csv.DictReader(handle) for name in ("query", "document")]  # no cell is too large to be read
    shown += [document["text"] for entry in entries for document in entry["relevant"]]
    assert len(shown) > 2
    assert all(500 < len(cut) <= 602 and cut.removesuffix(" ...") in text for cut in shown)


def test_own_columns_are_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(Path("corpus/columns/dev.parquet"), COLUMNS, [("q1", "source", "web"), ("q2", "source", "web"), ("q3", "source", "book")])
    groups = run(monkeypatch)["groups"]["splits"]["dev"]
    named = [(group["name"], group["queries"]) for group in groups if group["dimension"] == "column source"]
    assert named == [("web", 2), ("(none)", 1), ("book", 1)]


def test_the_best_on_dev_is_studied_and_bm25_with_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = run(monkeypatch)["groups"]
    assert (compared["model"], compared["against"]) == ("bm25", "star"), "bm25 is best; star and hybrid tie, star is simpler"


def test_on_made_dev_queries_nothing_is_compared_with_bm25(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with a fusion of it: made queries have their documents' words."""
    write_json(Path("corpus/stats.json"), {"pseudo": {"dev": "pseudo"}})
    groups = run(monkeypatch)["groups"]
    assert (groups["model"], groups["against"]) == ("star", "warmup")
    groups = run(monkeypatch, against="bm25")["groups"]
    assert (groups["model"], groups["against"]) == ("star", "bm25"), "as asked for"


def test_one_system_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("warmup", "star", "hybrid"):
        Path(f"metrics/{name}.json").unlink()
    report = run(monkeypatch)
    assert report["groups"]["against"] is None
    assert report["worst"]["queries"] == [], "bm25 finds everything"


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ({"model": "sun"}, "params.yaml: failures.model: found 'sun', expected one of bm25, hybrid, star, warmup"),
        ({"model": "star", "against": "star"}, "params.yaml: failures.against: found 'star', the model itself; expected another system"),
    ],
)
def test_wrong_names_are_refused(monkeypatch: pytest.MonkeyPatch, failures: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(monkeypatch, **failures)
    assert not Path("failures").exists()


def test_systems_with_other_queries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(Path("values/bm25/dev.parquet"), pa.schema([("query", pa.string()), ("RR", pa.float64())]), [("q1", 1.0)])
    with pytest.raises(UserError, match="have different dev queries, expected the same; re-run evaluate"):
        run(monkeypatch, model="star")


def test_queries_without_a_relevant_document_are_nobodys_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(
        Path("corpus/qrels/dev.parquet"), QRELS, [(query, doc, int(query != "q1")) for query, docs in RELEVANT.items() for doc in docs]
    )
    assert [entry["query"] for entry in run(monkeypatch, model="star")["worst"]["queries"]] == ["q2"]


def test_matched_without_blanks_are_bigrams() -> None:
    """The text between two blanks is a whole sentence there, which would tell nothing."""
    documents = {"d1": "北京大学位于海淀区", "d2": "red fish in 北京", "d3": "bird"}
    terms = analyzer("english", "english")
    save(Path("chinese"), build(documents.values(), terms, BM25(), Path("postings")), [pa.array(list(documents))], BM25())
    words = Words(Path("chinese"))
    assert matched_words("海淀区在北京吗? (fishes)", documents["d1"], words) == ["海淀", "淀区", "北京"]
    assert matched_words("海淀区在北京吗? (fishes)", documents["d2"], words) == ["fishes", "北京"]
