"""TREC runs: what is written is what trec_eval reads, in the same order; the stage's entry."""

import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval

from tasks.core.stage.errors import UserError
from tasks.core.stage.params import validate
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.evaluate.__main__ import ranked_lists
from tasks.evaluate.external import evaluate_files
from tasks.evaluate.measures import parse
from tasks.evaluate.params import Evaluate
from tasks.evaluate.runs import QUERY_BLOCK, rankings, read_trec_qrels, read_trec_run, without_identical_ids, write_run
from tasks.evaluate.split import evaluate_split


def ranked_with_ties(queries: int, seed: int) -> pa.Table:
    """Random lists with many tied scores, tiny and huge ones among them, in trec_eval's order."""
    draw = random.Random(seed)
    levels = [np.float32(x) for x in (1e-30, 0.1, 0.1 + 1e-8, 1 / 3, 1 / 3 + 1e-7, 7.0, 123456.789, 1e30, -2.5)]
    rows = []
    for q in range(queries):
        found = sorted(((draw.choice(levels), f"d{i}") for i in draw.sample(range(40), draw.randint(1, 20))), reverse=True)
        rows += [(f"q{q}", doc, rank, float(score)) for rank, (score, doc) in enumerate(found, 1)]
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)


def test_written_run_has_the_same_order_for_trec_eval(tmp_path: Path) -> None:
    table, draw = ranked_with_ties(200, 1), random.Random(2)
    assert pa.Table.from_batches(write_run(tmp_path / "run.trec", table.to_batches(97), "me")).equals(table)
    qrels = {f"q{q}": {f"d{i}": draw.randint(0, 2) for i in draw.sample(range(40), 6)} | {"d0": 1} for q in range(200)}
    with (tmp_path / "run.trec").open() as handle:
        fields = [line.split(" ") for line in handle.read().splitlines()]
    assert all(len(row) == 6 and row[1] == "Q0" and row[5] == "me" for row in fields)
    assert [np.float32(row[4]) for row in fields] == [np.float32(score) for score in table["score"].to_pylist()]
    with (tmp_path / "run.trec").open() as handle:
        run = pytrec_eval.parse_run(handle)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "map", "ndcg_cut_10"}).evaluate(run)
    names = ["RR", "AP", "nDCG@10", "RR@10"]
    means, count = evaluate_split(table.to_batches(53), qrels, parse(names, 1), tmp_path / "dev", "me")
    ours = pq.read_table(tmp_path / "dev.parquet").to_pylist()
    assert count == len(ours) == 200
    for row in ours:
        reference = theirs[row["query"]]
        assert row["RR"] == pytest.approx(reference["recip_rank"])
        assert row["AP"] == pytest.approx(reference["map"])
        assert row["nDCG@10"] == pytest.approx(reference["ndcg_cut_10"])
        assert row["RR@10"] == pytest.approx(reference["recip_rank"] if reference["recip_rank"] >= 0.1 else 0)
    assert means["RR"] == pytest.approx(sum(value["recip_rank"] for value in theirs.values()) / 200)
    lists: dict[str, list[str]] = {}
    for query, doc in zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True):
        lists.setdefault(query, []).append(doc)
    assert read_trec_run(tmp_path / "dev.trec") == lists


def test_an_id_may_hold_a_space_that_is_not_ascii(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q\u00a01 0 d\u3000one 1\r\n", encoding="utf-8")
    assert read_trec_qrels(tmp_path / "qrels") == {"q\u00a01": {"d\u3000one": 1}}


def test_blocks_keep_queries_whole() -> None:
    table = ranked_with_ties(QUERY_BLOCK + 3, 3)
    blocks = list(rankings(table.to_batches(11)))
    assert [len(block) for block in blocks] == [QUERY_BLOCK, 3]
    assert [doc for block in blocks for docs in block.values() for doc in docs] == table["doc"].to_pylist()


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 1000])
def test_documents_of_a_querys_own_id_are_left_out(batch: int, tmp_path: Path) -> None:
    draw = random.Random(batch)
    rows = []
    for query in map(str, range(60)):
        docs = [str(doc) for doc in draw.sample(range(60), draw.randint(1, 9))]
        if draw.random() < 0.5 and query not in docs:
            docs.insert(draw.randint(0, len(docs)), query)
        rows += [(query, doc, rank, -float(rank)) for rank, doc in enumerate(docs, 1)]
    expected, ranks = [], dict.fromkeys(map(str, range(60)), 0)
    for query, doc, _, score in rows:
        if query != doc:
            ranks[query] += 1
            expected.append((query, doc, ranks[query], score))
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)
    batches = [table.to_batches()[0][:0], *table.to_batches(batch)]
    found = pa.Table.from_batches(write_run(tmp_path / "run.trec", without_identical_ids(batches), "me"), RANKED)
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    cut = pa.Table.from_batches(without_identical_ids(batches, 4), RANKED)
    assert [tuple(row.values()) for row in cut.to_pylist()] == [row for row in expected if row[2] <= 4]
    assert 20 < len(rows) - len(expected) < 50


def test_ids_with_blanks_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    table = pa.table([["q"], ["New York"], [1], [1.0]], schema=RANKED)
    with pytest.raises(UserError, match="'New York'"):
        list(write_run(tmp_path / "run.trec", table.to_batches(), "me"))
    assert list(tmp_path.iterdir()) == []


def test_malformed_files_are_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\nq Q0 d2 2 high tag\n")
    (tmp_path / "qrels").write_text("q 0 d 1\n\nq 0 d2\n")
    with pytest.raises(UserError, match=r"run:2: found the score 'high'"):
        read_trec_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"qrels:3: found 3 fields, expected 4"):
        read_trec_qrels(tmp_path / "qrels")
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\np Q0 d 1 0.5 tag\nq Q0 d 2 0.4 tag\n")
    with pytest.raises(UserError, match=r"run:3: found document d of query q again, expected each once"):
        read_trec_run(tmp_path / "run")
    (tmp_path / "run").write_text("q Q0 d 1 nan tag\n")
    with pytest.raises(UserError, match=r"run:1: found the score 'nan', expected a number"):
        read_trec_run(tmp_path / "run")
    (tmp_path / "qrels").write_text("q 0 d 1\nq 0 d 1\nq 0 d 2\n")
    with pytest.raises(UserError, match=r"qrels:3: found grade 2 for q d, and 1 before; keep one of them"):
        read_trec_qrels(tmp_path / "qrels")
    with pytest.raises(UserError, match="not there"):
        evaluate_files(tmp_path / "run", tmp_path / "none", ["AP"], 1)


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 d 1 0.5 tag\n", encoding="utf-8-sig")
    (tmp_path / "qrels").write_text("q 0 d 1\n", encoding="utf-8-sig")
    assert read_trec_run(tmp_path / "run") == {"q": ["d"]}
    assert read_trec_qrels(tmp_path / "qrels") == {"q": {"d": 1}}


OWN = ", ignore_identical_ids: true"


def stage(folder: Path, *arguments: str, relevance: str = "1", more: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "params.yaml").write_text(f"evaluate: {{measures: [RR@10, AP], relevance: {relevance}{more}}}\n")
    paths = ["--qrels", "qrels", "--runs", "runs/bm25", "--metrics", "metrics/bm25.json"]
    command = [sys.executable, "-m", "tasks.evaluate", "--name", "bm25", *paths, *arguments]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True)


def write(path: Path, rows: list[tuple[object, ...]], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), path)


def test_stage(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q1", "a", 1), ("q2", "a", 2), ("q3", "b", 0), ("q4", "b", 1)], QRELS)
    write(tmp_path / "candidates" / "test.parquet", [("q1", "b", 1, 2.0), ("q1", "a", 2, 1.0), ("q3", "b", 1, 1.0)], RANKED)
    done = stage(tmp_path, "--candidates", "candidates")
    assert done.returncode == 0, done.stderr
    assert "dev has no judged queries" in done.stdout
    metrics = json.loads((tmp_path / "metrics" / "bm25.json").read_text())
    assert metrics == {"test": {"RR@10": pytest.approx(0.5 / 3), "AP": pytest.approx(0.5 / 3)}}  # q2 and q4 count 0, q3 not at all
    assert sorted(path.name for path in (tmp_path / "runs" / "bm25").iterdir()) == ["test.parquet", "test.trec"]
    assert pq.read_table(tmp_path / "runs" / "bm25" / "test.parquet").to_pydict() == {
        "query": ["q1", "q2", "q4"],
        "RR@10": [0.5, 0.0, 0.0],
        "AP": [0.5, 0.0, 0.0],
    }
    assert (tmp_path / "runs" / "bm25" / "test.trec").read_text() == "q1 Q0 b 1 2 bm25\nq1 Q0 a 2 1 bm25\nq3 Q0 b 1 1 bm25\n"


def test_stage_leaves_identical_ids_out_where_asked(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "test.parquet", [("a", "b", 1)], QRELS)
    write(tmp_path / "candidates" / "test.parquet", [("a", "a", 1, 2.0), ("a", "b", 2, 1.0)], RANKED)
    found = []
    for arguments, more in (([], ""), (["--ignore-identical-ids"], ""), ([], OWN), (["--no-ignore-identical-ids"], OWN)):
        done = stage(tmp_path, "--candidates", "candidates", *arguments, more=more)
        assert done.returncode == 0, done.stderr
        found.append((tmp_path / "runs" / "bm25" / "test.trec").read_text())
    whole, less = "a Q0 a 1 2 bm25\na Q0 b 2 1 bm25\n", "a Q0 b 1 1 bm25\n"
    assert found == [whole, less, less, whole]


def test_as_many_others_are_searched_where_identical_ids_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.evaluate import dense

    def dense_run(*arguments: Any) -> list[pa.RecordBatch]:
        depth = arguments[4].depth
        rows = [("a", doc, rank, -float(rank)) for rank, doc in enumerate("abcd"[:depth], 1)]
        rows += [("x", doc, rank, -float(rank)) for rank, doc in enumerate("abcd"[:depth], 1)]
        return pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED).to_batches()

    monkeypatch.setattr(dense, "dense_run", dense_run)
    given = Namespace(candidates=None, encoder=None, embeddings=None, tokens=None, index=None)
    for ignore, expected in ((False, ["ab", "ab"]), (True, ["bc", "ab"])):
        params = Evaluate(depth=2, measures=("nDCG@2",), ignore_identical_ids=ignore)
        (lists,) = rankings(ranked_lists(given, "test", params))
        assert ["".join(docs) for docs in lists.values()] == expected


def test_stage_refuses_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "test.parquet", [("q3", "b", 0)], QRELS)
    done = stage(tmp_path, "--candidates", "candidates")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "found no relevant document" in done.stderr
    assert not (tmp_path / "runs" / "bm25").exists()
    assert "expected either --candidates" in stage(tmp_path).stderr
    assert (
        "expected either --candidates"
        in stage(tmp_path, "--candidates", "c", "--encoder", "e", "--embeddings", "v", "--tokens", "t").stderr
    )


def test_each_split_has_its_own_least_grade(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [("q1", "a", 1)], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q2", "a", 1), ("q2", "b", 3), ("q3", "a", 1)], QRELS)
    write(tmp_path / "candidates" / "dev.parquet", [("q1", "a", 1, 1.0)], RANKED)
    write(tmp_path / "candidates" / "test.parquet", [("q2", "a", 1, 2.0), ("q2", "b", 2, 1.0)], RANKED)
    for relevance in ("{dev: 1, test: 2}", "{test: 2}"):
        done = stage(tmp_path, "--candidates", "candidates", relevance=relevance)
        assert done.returncode == 0, done.stderr
        metrics = json.loads((tmp_path / "metrics" / "bm25.json").read_text())
        assert metrics == {"dev": {"RR@10": 1.0, "AP": 1.0}, "test": {"RR@10": 0.5, "AP": 0.5}}  # q3 has grade 1 alone, and is left out


def test_a_split_is_not_lost_to_the_least_grade_in_silence(tmp_path: Path) -> None:
    write(tmp_path / "qrels" / "dev.parquet", [("q1", "a", 1)], QRELS)
    write(tmp_path / "qrels" / "test.parquet", [("q2", "b", 3)], QRELS)
    write(tmp_path / "candidates" / "test.parquet", [("q2", "b", 1, 1.0)], RANKED)
    done = stage(tmp_path, "--candidates", "candidates", relevance="2")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "evaluate.relevance: found 2 for dev, where the largest grade is 1" in done.stderr
    assert "{dev: 1, test: 2}" in done.stderr
    assert not (tmp_path / "runs" / "bm25").exists()


@pytest.mark.parametrize(
    ("relevance", "line"),
    [
        ("two", "evaluate.relevance.dev: found 'two'"),
        ({"train": 2}, "evaluate.relevance.train"),
        ({"test": 0}, "evaluate.relevance.test: found 0"),
    ],
)
def test_refused_grades(relevance: object, line: str) -> None:
    with pytest.raises(UserError) as refused:
        validate(Evaluate, {"relevance": relevance}, "evaluate")
    assert str(refused.value).startswith(line)


def test_lexical_way_does_without_torch() -> None:
    code = "import sys, tasks.evaluate.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
