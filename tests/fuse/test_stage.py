"""`python -m tasks.fuse`: the choice is the best on dev by a plain loop, test is not read for it, and bad input is refused."""

import json
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.metrics.measures import means, parse
from tasks.core.retrieval.fusion import GRIDS, Ranked, fuse, pair
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.statistics.clusters import connected
from tasks.core.statistics.confirmation import is_selection_query
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.core.trec.runs import best_first, ranked_batch, read_run, write_run
from tasks.evaluate.split import evaluate_split
from tasks.fuse.grid import best_setting, grid_means
from tasks.fuse.params import Fuse

Lists = dict[str, dict[str, float]]  # query, document, score


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(split: str, queries: list[str], *, first: Lists, second: Lists, relevant: list[tuple[str, str, int]]) -> None:
    for folder in ("queries", "qrels", "runs/bm25", "runs/star"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    write_table(Path(f"queries/{split}.parquet"), QUERIES, [table([(query, "text", []) for query in queries], QUERIES)])
    write_table(Path(f"qrels/{split}.parquet"), QRELS, [table(relevant, QRELS)])
    for name, lists in (("bm25", first), ("star", second)):
        rows = [(query, best_first(list(lists[query]), list(lists[query].values()))) for query in queries if lists.get(query)]
        write_run(Path(f"runs/{name}/{split}.trec"), [ranked_batch(rows)], name)


def table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)], schema=schema)


def run(monkeypatch: pytest.MonkeyPatch, *more: str, method: str = "linear", sections: str = "") -> dict[str, Any]:
    Path("params.yaml").write_text(f"fuse: {{hybrid: {{first: bm25, second: star, method: {method}}}}}\n{sections}")
    freeze_parameters(Path())
    arguments = "--name hybrid --first runs/bm25 --second runs/star --queries queries --qrels qrels --out runs/hybrid"
    monkeypatch.setattr(sys, "argv", ["fuse", *arguments.split(), *more])
    import_module("tasks.fuse.__main__").main()
    return dict(json.loads(Path("runs/hybrid/fusion.json").read_text()))


def draw_lists(seed: int, queries: list[str]) -> Lists:
    """Random lists; every seventh query has none, because BM25 finds nothing for some."""
    draw = random.Random(seed)
    levels = [0.25, 0.5, 1.0, 3.0]
    return {q: {f"d{d}": draw.choice(levels) for d in draw.sample(range(30), 12)} for n, q in enumerate(queries) if (n + seed) % 7}


def draw_judgments(seed: int, queries: list[str]) -> list[tuple[str, str, int]]:
    draw = random.Random(seed)
    return [(query, f"d{d}", draw.choice([0, 1, 2])) for query in queries for d in draw.sample(range(30), 5)]


def write_example() -> None:
    for seed, split in enumerate(("dev", "test")):
        names = [f"{split}{n}" for n in range(30)]
        write(split, names, first=draw_lists(seed, names), second=draw_lists(seed + 10, names), relevant=draw_judgments(seed + 20, names))


def reference_lists(split: str, method: Any, setting: float) -> dict[str, list[str]]:
    """The fused lists of a split, from files read line by line."""
    lists: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for name in ("bm25", "star"):
        for row in Path(f"runs/{name}/{split}.trec").read_text().splitlines():
            query, _, doc, _, score, _ = row.split(" ")
            lists.setdefault(query, {}).setdefault(name, []).append((doc, float(score)))
    fused = {}
    for query, results in lists.items():
        first, second = (Ranked([d for d, _ in results.get(name, [])], [s for _, s in results.get(name, [])]) for name in ("bm25", "star"))
        fused[query] = [doc for doc, _ in fuse(pair(first, second, method), setting, 1000)]
    return fused


@pytest.mark.parametrize(("method", "key"), [("linear", "weight"), ("zscore", "weight"), ("rrf", "k")])
def test_the_best_on_dev_is_chosen_and_both_splits_are_fused_with_it(method: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example()
    monkeypatch.setattr("tasks.fuse.grid.QUERY_BLOCK", 7)  # so that few queries are many blocks
    record = run(monkeypatch, method=method, sections="report: {metric: RR@10}\nevaluate: {relevance: {dev: 2}}\n")
    assert record["measure"] == "RR@10" and record["chosen_on"] == "dev"
    assert [point[key] for point in record["grid"]] == list(GRIDS[method])
    rows = draw_judgments(20, [f"dev{n}" for n in range(30)])
    grades = {query: {d: g for q, d, g in rows if q == query} for query, _, _ in rows}
    judged_queries = set(grades)
    assert any(max(own.values()) < 2 for own in grades.values()), "which count 0"
    for point in record["grid"]:
        lists, total = reference_lists("dev", method, point[key]), 0.0
        for query in judged_queries:
            places = [n for n, doc in enumerate(lists.get(query, [])[:10], 1) if grades[query].get(doc, 0) >= 2]
            total += 1 / places[0] if places else 0
        assert point["RR@10"] == pytest.approx(total / len(judged_queries))
    best = max(point["RR@10"] for point in record["grid"])
    assert record[key] == next(point[key] for point in record["grid"] if point["RR@10"] == pytest.approx(best, abs=1e-12))
    assert len({round(point["RR@10"], 9) for point in record["grid"]}) > 1, "the settings in the grid differ"
    for split in ("dev", "test"):
        assert dict(read_run(Path(f"runs/hybrid/{split}.trec"))) == reference_lists(split, method, record[key])
    judged = {query: grades[query] for query in judged_queries}
    measured = evaluate_split(Path("runs/hybrid/dev.trec"), judged, parse(["RR@10"], 2), corpus=Path(), split="dev")
    assert means(["RR@10"], measured)["RR@10"] == pytest.approx(best)  # what evaluate will compute


@pytest.mark.parametrize("queries_per_document", [1, 2])
def test_a_weight_may_be_chosen_on_the_selection_part_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], queries_per_document: int
) -> None:
    """The first system is good on those queries that choose, the second on all others, which are four times as many. With two queries
    per relevant document, both choose or neither does."""
    names = [f"dev{n}" for n in range(60)]
    docs = {q: f"a{n // queries_per_document}" for n, q in enumerate(names)}
    groups = connected(docs.items())
    good, bad = (9.0, 1.0, 0.0), (0.0, 9.0, 8.0)
    first, second = (
        {q: dict(zip((docs[q], "b", "c"), good if is_selection_query(q, groups) == best else bad, strict=True)) for q in names}
        for best in (True, False)
    )
    for split in ("dev", "test"):
        write(split, names, first=first, second=second, relevant=[(q, docs[q], 1) for q in names])
    everything, part = run(monkeypatch), run(monkeypatch, method="linear, queries: selection")
    assert everything["weight"] == 0 and everything["chosen_on"] == "dev"
    assert part["weight"] == next(point["weight"] for point in part["grid"] if point["nDCG@10"] == 1.0) > 0.5
    assert part["chosen_on"] == "dev (selection part)"
    output = capsys.readouterr().out
    ends = [f"{weight}: {part['grid'][place]['nDCG@10']:.4f}" for weight, place in ((0, 0), (1, -1))]
    message = f"weight {part['weight']:g}: nDCG@10 1.0000 on dev (selection part), the best of 21 ({', '.join(ends)}; all: fusion.json)"
    assert f"fuse hybrid: linear of bm25 and star, {message}\n" in output


@pytest.mark.parametrize("part", ["dev", "selection"])
def test_queries_of_clicks_choose_no_weight(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The second system is good on the queries that clicks judge, which are twenty times as many, and share documents with all others."""
    names, clicked = [f"dev{n}" for n in range(20)], [f"click-{n:016x}" for n in range(400)]
    good, bad = (9.0, 1.0, 0.0), (0.0, 9.0, 8.0)
    first, second = (
        {q: dict(zip(("a", "b", "c"), good if (q in names) == best else bad, strict=True)) for q in names + clicked}
        for best in (True, False)
    )
    write("dev", names + clicked, first=first, second=second, relevant=[(q, "a", 1) for q in clicked + names])
    write("test", [], first={}, second={}, relevant=[])
    record = run(monkeypatch, method=f"linear, queries: {part}")
    assert record["weight"] == next(point["weight"] for point in record["grid"] if point["nDCG@10"] == 1.0) > 0.5
    first, second = ({q: {doc + q: score for doc, score in lists[q].items()} for q in clicked} for lists in (first, second))
    write("dev", clicked, first=first, second=second, relevant=[(q, "a" + q, 1) for q in clicked])  # not all in one group
    assert run(monkeypatch, method=f"linear, queries: {part}")["weight"] == 0, "there are no others"


def test_a_dev_without_queries_in_the_selection_part_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_example()
    monkeypatch.setattr(import_module("tasks.fuse.__main__"), "is_selection_query", lambda *_: False)
    record = run(monkeypatch, method="linear, queries: selection")
    judged = read_table(Path("qrels/dev.parquet"), QRELS)["query"].unique()
    why = f"none of {len(judged)} judged dev queries is in the selection part; set queries: dev"
    assert (record["weight"], record["chosen_on"], record["why"]) == (0.5, None, why)
    assert f"weight 0.5, not chosen: {why}" in capsys.readouterr().out


def test_choosing_does_not_read_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the second system is good on dev, and only the first on test."""
    for split, good in (("dev", "star"), ("test", "bm25")):
        names = [f"{split}{n}" for n in range(5)]
        right, wrong = {q: {"a": 9.0, "b": 1.0, "c": 0.0} for q in names}, {q: {"b": 9.0, "c": 8.0, "a": 0.0} for q in names}
        lists = {"star": wrong, "bm25": wrong} | {good: right}
        write(split, names, first=lists["bm25"], second=lists["star"], relevant=[(q, "a", 1) for q in names])
    record = run(monkeypatch)
    assert record["weight"] == 0
    firsts = [docs[0] for _, docs in read_run(Path("runs/hybrid/test.trec"))]
    assert firsts == ["b"] * 5, "test uses the weight chosen on dev"
    for path in ("runs/bm25/test.trec", "runs/star/test.trec", "qrels/test.parquet", "queries/test.parquet"):
        Path(path).unlink()
    module, params = import_module("tasks.fuse.__main__"), Fuse(first="bm25", second="star")
    assert module.choose_setting(Path("runs/bm25"), Path("runs/star"), params, queries=Path("queries"), qrels=Path("qrels")) == record


@pytest.mark.parametrize("metric", ["RR@10", "AP"])
@pytest.mark.parametrize("depth", [2, 4, 1000])
def test_the_grid_measures_lists_of_the_depth_that_is_written(depth: int, metric: str) -> None:
    """Also where the measure goes deeper, or has no cutoff: a document beyond `depth` is in no run."""
    draw, documents = random.Random(depth), [f"d{n}" for n in range(12)]
    first, second = ({f"q{n}": draw.sample(documents, 8) for n in range(20)} for _ in range(2))
    qrels = {query: dict.fromkeys(draw.sample(documents, 2), 1) for query in first}
    falling = [float(-n) for n in range(8)]
    pairs = [(query, pair(Ranked(first[query], falling), Ranked(second[query], falling), "rrf")) for query in first]
    for k, mean in grid_means(pairs, "rrf", depth, qrels=qrels, measure=parse([metric], 1)).items():
        total = 0.0
        for query, grades in qrels.items():
            sums = {d: sum(1 / (k + 1 + own.index(d)) for own in (first[query], second[query]) if d in own) for d in documents}
            ranked = sorted((d for d in documents if sums[d]), key=lambda d, sums=sums: (np.float32(sums[d]), d), reverse=True)[:depth]
            places = [n for n, d in enumerate(ranked, 1) if d in grades]
            if metric == "AP":
                total += sum(hits / n for hits, n in enumerate(places, 1)) / len(grades)
            elif places and places[0] <= 10:
                total += 1 / places[0]
        assert mean == pytest.approx(total / len(qrels))


def test_the_grid_discards_unjudged_documents_before_it_cuts() -> None:
    """The judged document is fourth in all fusions, and first of the judged ones."""
    ranked = Ranked(["x", "y", "z", "a"], [4.0, 3.0, 2.0, 1.0])
    measure = parse(["nDCG(judged_only=True)@2"], 1)
    means = grid_means([("q", pair(ranked, ranked, "linear"))], "linear", 1000, qrels={"q": {"a": 1}}, measure=measure)
    assert set(means.values()) == {1.0}


def test_ties_go_to_the_first_setting_in_the_grid() -> None:
    assert best_setting({0.0: 0.5, 0.5: 0.7, 1.0: 0.7}) == 0.5
    assert best_setting({0.0: 0.3, 0.5: 0.1 + 0.2}) == 0.0


def test_without_dev_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_example()
    write("dev", [], first={}, second={}, relevant=[])
    for file in (*Path("runs").rglob("dev.trec"), Path("qrels/dev.parquet")):
        file.unlink()
    record = run(monkeypatch)
    assert (record["weight"], record["chosen_on"], record["grid"]) == (0.5, None, [])
    assert sorted(path.name for path in Path("runs/hybrid").iterdir()) == ["fusion.json", "test.trec"]
    assert "weight 0.5, not chosen: there are no judged dev queries" in capsys.readouterr().out
    assert run(monkeypatch, method="rrf")["k"] == 60


@pytest.mark.parametrize(("method", "key", "setting"), [("linear", "weight", 0.85), ("zscore", "weight", 0.0), ("rrf", "k", 7)])
def test_a_given_setting_is_used(method: Any, key: str, setting: float, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_example()
    record = run(monkeypatch, method=f"{method}, {key}: {setting}")
    assert (record[key], record["chosen_on"], record["grid"]) == (setting, "params.yaml", [])
    assert f"{key} {setting:g}, as in params.yaml" in capsys.readouterr().out
    for split in ("dev", "test"):
        assert dict(read_run(Path(f"runs/hybrid/{split}.trec"))) == reference_lists(split, method, setting)


@pytest.mark.parametrize(
    ("method", "words"), [("rrf, weight: 0.5", "weight is set, but rrf has none; set k"), ("zscore, k: 60", "set weight")]
)
def test_a_setting_of_another_method_is_refused(method: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example()
    with pytest.raises(UserError, match=words):
        run(monkeypatch, method=method)


def test_one_query_and_an_empty_run_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    write("dev", ["q"], first={}, second={"q": {"a": 1.0}}, relevant=[("q", "a", 1)])
    write("test", ["p"], first={}, second={}, relevant=[("p", "a", 1)])
    record = run(monkeypatch)
    assert record["weight"] == 0 and {point["nDCG@10"] for point in record["grid"]} == {1.0}
    assert Path("runs/hybrid/dev.trec").read_text() == "q Q0 a 1 1 hybrid\n"
    assert Path("runs/hybrid/test.trec").read_text() == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dev0 Q0 d1 1 nan bm25", r"query dev0, document d1: found the score 'nan', expected a finite number"),
        ("dev0 Q0 d1 1 -inf bm25", "found the score '-inf'"),
        ("dev0 Q0 d1 1 high bm25", "found the score 'high'"),
        ("dev0 Q0 d1 1 bm25", "found 5 fields, expected 6"),
        ("stranger Q0 d1 1 2.0 bm25", "query 'stranger' is not in the corpus or is out of order"),
    ],
)
def test_a_run_that_cannot_be_fused_is_refused_in_one_line(line: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example()
    Path("runs/bm25/dev.trec").write_text(f"{line}\n")
    with pytest.raises(UserError, match=words) as refusal:
        run(monkeypatch)
    assert "\n" not in str(refusal.value) and not Path("runs/hybrid").exists()


def test_invalid_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    write_example()
    with pytest.raises(UserError, match=r"fuse.hybrid.method: found 'mean'"):
        run(monkeypatch, method="mean")
    with pytest.raises(ValueError, match="first and second are both star; name two different systems"):
        Fuse(first="star", second="star")
