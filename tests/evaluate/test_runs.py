"""TREC runs: trec_eval reads our files in the same order; the stage's entry point."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval

from tasks.core.errors import UserError
from tasks.core.metrics.measures import means, parse
from tasks.core.params.sections import validate
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.trec.external import read_trec_qrels, read_trec_run
from tasks.core.trec.runs import write_run
from tasks.evaluate.external import evaluate_files
from tasks.evaluate.params import Evaluate
from tasks.evaluate.runs import QUERY_BLOCK, read_rankings
from tasks.evaluate.split import evaluate_split

CLICK_1 = "click-0000000000000001"
CLICK_2 = "click-0000000000000002"
CLICK_3 = "click-0000000000000003"


def ranked_with_ties(queries: int, seed: int) -> pa.Table:
    """Random lists with many tied scores, some tiny or huge, in trec_eval's order."""
    draw = random.Random(seed)
    levels = [np.float32(x) for x in (1e-30, 0.1, 0.1 + 1e-8, 1 / 3, 1 / 3 + 1e-7, 7.0, 123456.789, 1e30, -2.5)]
    rows = []
    for q in range(queries):
        scored = sorted(((draw.choice(levels), f"d{i}") for i in draw.sample(range(40), draw.randint(1, 20))), reverse=True)
        rows += [(f"q{q}", doc, rank, float(score)) for rank, (score, doc) in enumerate(scored, 1)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)


def test_a_run_of_ours_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Ids with white space are escaped in the file, but judged and tie-broken as they are."""
    docs = ["d 2", "d 1", "d", "%00d"]
    table = pa.table([["a query"] * 4, docs, [1, 2, 3, 4], [1.0, 1.0, 0.5, 0.5]], schema=RANKED)
    write_run(tmp_path / "run.trec", table.to_batches(), "me")
    assert read_trec_run(tmp_path / "run.trec") == {"a query": docs}
    (tmp_path / "qrels.trec").write_text("%00a%20query 0 %00d%202 1\n")
    assert read_trec_qrels(tmp_path / "qrels.trec") == {"a query": {"d 2": 1}}


def test_written_run_has_the_same_order_for_trec_eval(tmp_path: Path) -> None:
    table, draw = ranked_with_ties(200, 1), random.Random(2)
    assert write_run(tmp_path / "run.trec", table.to_batches(97), "me") == len(table)
    qrels = {f"q{q}": {f"d{i}": draw.randint(0, 2) for i in draw.sample(range(40), 6)} | {"d0": 1} for q in range(200)}
    with (tmp_path / "run.trec").open() as handle:
        fields = [line.split(" ") for line in handle.read().splitlines()]
    assert all(len(row) == 6 and row[1] == "Q0" and row[5] == "me" for row in fields)
    assert [np.float32(row[4]) for row in fields] == [np.float32(score) for score in table["score"].to_pylist()]
    with (tmp_path / "run.trec").open() as handle:
        run = pytrec_eval.parse_run(handle)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "map", "ndcg_cut_10"}).evaluate(run)
    names = ["RR", "AP", "nDCG@10", "RR@10"]
    ours = evaluate_split(tmp_path / "run.trec", qrels, parse(names, 1), corpus=tmp_path, split="dev")
    assert len(ours) == 200
    for query, row in ours.items():
        reference = theirs[query]
        assert row["RR"] == pytest.approx(reference["recip_rank"])
        assert row["AP"] == pytest.approx(reference["map"])
        assert row["nDCG@10"] == pytest.approx(reference["ndcg_cut_10"])
        assert row["RR@10"] == pytest.approx(reference["recip_rank"] if reference["recip_rank"] >= 0.1 else 0)
    assert means(["RR"], ours)["RR"] == pytest.approx(sum(value["recip_rank"] for value in theirs.values()) / 200)
    lists: dict[str, list[str]] = {}
    for query, doc in zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True):
        lists.setdefault(query, []).append(doc)
    assert read_trec_run(tmp_path / "run.trec") == lists


def test_an_id_may_contain_a_non_ascii_space(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q\u00a01 0 d\u3000one 1\r\n", encoding="utf-8")
    assert read_trec_qrels(tmp_path / "qrels") == {"q\u00a01": {"d\u3000one": 1}}


def test_blocks_keep_queries_whole(tmp_path: Path) -> None:
    table = ranked_with_ties(QUERY_BLOCK + 3, 3)
    write_run(tmp_path / "run.trec", table.to_batches(), "me")
    blocks = list(read_rankings(tmp_path / "run.trec"))
    assert [len(block) for block in blocks] == [QUERY_BLOCK, 3]
    assert [doc for block in blocks for docs in block.values() for doc in docs] == table["doc"].to_pylist()


def test_malformed_files_are_reported_by_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\nq Q0 d2 2 high tag\n")
    (tmp_path / "qrels").write_text("q 0 d 1\n\nq 0 d2\n")
    with pytest.raises(UserError, match=r"run:2: found the score 'high'"):
        read_trec_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"qrels:3: found 3 fields, expected 4"):
        read_trec_qrels(tmp_path / "qrels")
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\np Q0 d 1 0.5 tag\nq Q0 d 2 0.4 tag\n")
    with pytest.raises(UserError, match=r"run:3: found document d twice for query q, expected once"):
        read_trec_run(tmp_path / "run")
    (tmp_path / "run").write_text("q Q0 d 1 nan tag\n")
    with pytest.raises(UserError, match=r"run:1: found the score 'nan', expected a number"):
        read_trec_run(tmp_path / "run")
    (tmp_path / "qrels").write_text("q 0 d 1\nq 0 d 1\nq 0 d 2\n")
    with pytest.raises(UserError, match=r"qrels:3: found grade 2 for q d, but 1 before; keep one of them"):
        read_trec_qrels(tmp_path / "qrels")
    with pytest.raises(UserError, match="not found"):
        evaluate_files(tmp_path / "run", tmp_path / "none", ["AP"], 1)


def test_a_byte_order_mark_is_not_part_of_an_id(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\n", encoding="utf-8-sig")
    (tmp_path / "qrels").write_text("q 0 d 1\n", encoding="utf-8-sig")
    assert read_trec_run(tmp_path / "run") == {"q": ["d"]}
    assert read_trec_qrels(tmp_path / "qrels") == {"q": {"d": 1}}


def run_stage(folder: Path, relevance: str = "1") -> subprocess.CompletedProcess[str]:
    (folder / "params.yaml").write_text(f"evaluate: {{measures: [RR@10, AP], relevance: {relevance}}}\n")
    freeze_parameters(folder)
    paths = ["--runs", "runs/bm25", "--corpus", ".", "--values", "values/bm25", "--metrics", "metrics/bm25.json"]
    command = [sys.executable, "-m", "tasks.evaluate", "--name", "bm25", *paths]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True)


def write(path: Path, rows: list[tuple[object, ...]], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), path)


def write_bm25_run(folder: Path, split: str, rows: list[tuple[str, str, int, float]]) -> None:
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)
    write_run(folder / "runs" / "bm25" / f"{split}.trec", table.to_batches(), "bm25")


def test_stage_writes_means_and_values_per_query(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q1", "a", 1), ("q2", "a", 2), ("q3", "b", 0), ("q4", "b", 1)], QRELS)
    write_bm25_run(tmp_path, "test", [("q1", "b", 1, 2.0), ("q1", "a", 2, 1.0), ("q3", "b", 1, 1.0)])
    result = run_stage(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "dev has no judged queries" in result.stdout
    metrics = json.loads((tmp_path / "metrics" / "bm25.json").read_text())
    assert metrics == {"test": {"RR@10": pytest.approx(0.5 / 4), "AP": pytest.approx(0.5 / 4)}}  # q2 and q4 lack a list, q3 a document
    assert [path.name for path in (tmp_path / "values" / "bm25").iterdir()] == ["test.parquet"]
    assert pq.read_table(tmp_path / "values" / "bm25" / "test.parquet").to_pydict() == {
        "query": ["q1", "q2", "q3", "q4"],
        "RR@10": [0.5, 0.0, 0.0, 0.0],
        "AP": [0.5, 0.0, 0.0, 0.0],
    }


def test_dev_queries_of_a_click_log_are_measured_apart(tmp_path: Path) -> None:
    """They favor the model that was logged, so they are in no mean that chooses a system."""
    clicked = [(CLICK_1, "a", 1), (CLICK_2, "a", 1), (CLICK_3, "b", 1)]
    judged = [("q1", "a", 1), ("q2", "b", 0)]
    write_bm25_run(
        tmp_path,
        "dev",
        [("q1", "b", 1, 2.0), ("q1", "a", 2, 1.0), (CLICK_1, "a", 1, 1.0), (CLICK_3, "b", 1, 1.0)],
    )
    for rows, expected, queries in (
        (
            judged + clicked,
            {"dev": 0.25, "clicks": 2 / 3},
            {"dev": ["q1", "q2"], "clicks": [CLICK_1, CLICK_2, CLICK_3]},
        ),
        (judged, {"dev": 0.25}, {"dev": ["q1", "q2"]}),
        (clicked, {"dev": 2 / 3}, {"dev": [CLICK_1, CLICK_2, CLICK_3]}),
    ):
        write(tmp_path / "qrels" / "dev.parquet", rows, QRELS)
        write(tmp_path / "qrels" / "test.parquet", [], QRELS)
        result = run_stage(tmp_path)
        assert result.returncode == 0, result.stderr
        metrics = json.loads((tmp_path / "metrics" / "bm25.json").read_text())
        assert metrics == {part: {name: pytest.approx(mean) for name in ("RR@10", "AP")} for part, mean in expected.items()}
        found = {path.stem: pq.read_table(path)["query"].to_pylist() for path in (tmp_path / "values" / "bm25").iterdir()}
        assert found == queries
        without = [line for line in result.stdout.splitlines() if "without a relevant document" in line]
        assert without == (["bm25: dev, 1 query without a relevant document, counted as 0 in binary measures"] if judged[1] in rows else [])


def test_stage_refuses_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "test.parquet", [("q3", "b", 0)], QRELS)
    result = run_stage(tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "found no relevant document" in result.stderr
    assert not (tmp_path / "values" / "bm25").exists()
    write(tmp_path / "qrels" / "test.parquet", [("q3", "b", 1)], QRELS)
    result = run_stage(tmp_path)
    assert (result.returncode, result.stderr) == (2, "retemper: runs/bm25/test.trec: not found; run the stage that makes it\n")


def test_each_split_has_its_own_lowest_relevant_grade(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [("q1", "a", 1)], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q2", "a", 1), ("q2", "b", 3), ("q3", "a", 1)], QRELS)
    write_bm25_run(tmp_path, "dev", [("q1", "a", 1, 1.0)])
    write_bm25_run(tmp_path, "test", [("q2", "a", 1, 2.0), ("q2", "b", 2, 1.0)])
    for relevance in ("{dev: 1, test: 2}", "{test: 2}"):
        result = run_stage(tmp_path, relevance=relevance)
        assert result.returncode == 0, result.stderr
        metrics = json.loads((tmp_path / "metrics" / "bm25.json").read_text())
        assert metrics == {"dev": {"RR@10": 1.0, "AP": 1.0}, "test": {"RR@10": 0.25, "AP": 0.25}}  # q3 has only grade 1 and counts 0


def test_a_split_without_grades_high_enough_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [("q1", "a", 1)], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q2", "b", 3)], QRELS)
    write_bm25_run(tmp_path, "test", [("q2", "b", 1, 1.0)])
    result = run_stage(tmp_path, relevance="2")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "evaluate.relevance: found 2 for dev, whose highest grade is 1" in result.stderr
    assert "{dev: 1, test: 2}" in result.stderr
    assert not (tmp_path / "values" / "bm25").exists()


@pytest.mark.parametrize(
    ("relevance", "line"),
    [
        ("two", "evaluate: relevance.dev: found 'two'"),
        ({"train": 2}, "evaluate: relevance.train"),
        ({"test": 0}, "evaluate: relevance.test: found 0"),
    ],
)
def test_invalid_grades_are_refused(relevance: object, line: str) -> None:
    with pytest.raises(UserError) as refusal:
        validate(Evaluate, {"relevance": relevance}, "evaluate")
    assert str(refusal.value).startswith(line)


def test_evaluate_does_not_import_torch(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "test.parquet", [("q1", "a", 1)], QRELS)
    write_bm25_run(tmp_path, "test", [("q1", "a", 1, 1.0)])
    (tmp_path / "params.yaml").write_text("evaluate: {}\n")
    freeze_parameters(tmp_path)
    paths = ["--runs", "runs/bm25", "--corpus", ".", "--values", "values", "--metrics", "metrics.json"]
    code = f"import runpy, sys; sys.argv[1:] = ['--name', 'bm25', *{paths}]; runpy.run_module('tasks.evaluate', run_name='__main__')"
    code += "; print(*sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "pyarrow" in result.stdout.split() and "torch" not in result.stdout.split()


def test_a_lowest_relevant_grade_below_1_is_refused(tmp_path: Path) -> None:
    """Unjudged documents and grade 0 would be relevant: RBP and PairwiseErrors gave figures without a meaning."""
    (tmp_path / "run").write_text("q Q0 a 1 1 tag\n")
    (tmp_path / "qrels").write_text("q 0 a 2\nq 0 b 0\n")
    assert evaluate_files(tmp_path / "run", tmp_path / "qrels", ["AP"], 2) == {"AP": 1.0}
    for relevance in (0, -1, 1001):
        with pytest.raises(UserError, match=rf"^--relevance: found {relevance}, expected 1 to 1,000: grade 0 is not relevant$"):
            evaluate_files(tmp_path / "run", tmp_path / "qrels", ["RBP"], relevance)
    with pytest.raises(UserError, match=r"of grade 3 or higher, expected at least one; set --relevance to at most 2$"):
        evaluate_files(tmp_path / "run", tmp_path / "qrels", ["AP"], 3)
    (tmp_path / "qrels").write_text("q 0 a 0\n")
    with pytest.raises(UserError, match=r"of grade 1 or higher, expected at least one; judge a relevant document$"):
        evaluate_files(tmp_path / "run", tmp_path / "qrels", ["AP"], 1)


def test_the_deepest_measure_is_the_one_that_counts_the_most_ranks() -> None:
    """Stages must find as many documents; judged_only discards some first, but needs no fewer."""
    assert Evaluate(measures=("RR@10", "AP", "nDCG(judged_only=True)@100")).deepest == ("nDCG(judged_only=True)@100", 100)


def test_foreign_runs_that_contradict_themselves_or_the_qrels_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 a 1 0.1 tag\nq Q0 b 2 0.9 tag\n")  # distances
    with pytest.raises(UserError, match=r"run:2: found rank 2 with score 0.9 after rank 1 with 0.1, expected higher scores at lower ranks"):
        read_trec_run(tmp_path / "run")
    (tmp_path / "run").write_text(
        "q Q0 a 2 0.1 tag\nq Q0 b 1 0.9 tag\np Q0 a 0 0.5 tag\np Q0 b 0 0.7 tag\nr Q0 a - 1 tag\nr Q0 b - 2 tag\n"
    )
    assert read_trec_run(tmp_path / "run") == {"q": ["b", "a"], "p": ["b", "a"], "r": ["b", "a"]}, "any order of lines; no ranks at all"
    (tmp_path / "qrels").write_text("7 0 a 1\n")
    with pytest.raises(UserError, match=r"run: none of its 3 queries \(q, ...\) is the only one in .*qrels \(7\), expected"):
        evaluate_files(tmp_path / "run", tmp_path / "qrels", ["AP"], 1)
    with pytest.raises(UserError, match=r"--measures: found Coverage@5, which reads documents"):
        evaluate_files(tmp_path / "run", tmp_path / "qrels", ["Coverage@5"], 1)
