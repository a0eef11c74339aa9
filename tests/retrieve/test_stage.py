"""The stage's entry point: runs from candidates, with or without a query's own document; which splits get a run."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QUERIES, RANKED
from tasks.retrieve.__main__ import ranked_lists
from tasks.retrieve.params import Retrieve

OWN = "ignore_identical_ids: true"
LISTS = [("a", "a", 1, 2.0), ("a", "b", 2, 1.0)]


@pytest.fixture
def stage(project: Path, try_stage: Any) -> Callable[..., Any]:
    """`stage(*arguments, params=...)` writes bm25's runs."""

    def run(*arguments: str, params: str = "") -> Any:
        (project / "params.yaml").write_text(f"retrieve: {{{params}}}\n")
        return try_stage(project, "retrieve", "--name", "bm25", "--out", "runs/bm25", *arguments)

    return run


def write(path: Path, rows: list[tuple[object, ...]], schema: pa.Schema) -> None:
    write_table(path, schema, [pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two test queries, one of them with documents from BM25, and no dev queries."""
    for split, queries in {"dev": [], "test": ["a", "b"]}.items():
        write(tmp_path / "queries" / f"{split}.parquet", [(query, "words", []) for query in queries], QUERIES)
    write(tmp_path / "candidates" / "test.parquet", LISTS, RANKED)
    return tmp_path


def test_only_splits_with_queries_get_a_run(project: Path, stage: Any) -> None:
    result = stage("--candidates", "candidates", "--queries", "queries")
    assert result.status == 0, result
    assert result.out == "bm25: dev has no queries, skipped\nbm25: test, 2 queries, 2 documents\n"
    assert [path.name for path in (project / "runs" / "bm25").iterdir()] == ["test.trec"]
    assert (project / "runs" / "bm25" / "test.trec").read_text() == "a Q0 a 1 2 bm25\na Q0 b 2 1 bm25\n"
    write(project / "candidates" / "test.parquet", [], RANKED)
    assert stage("--candidates", "candidates", "--queries", "queries").status == 0
    assert (project / "runs" / "bm25" / "test.trec").read_text() == "", "queries that find nothing are still measured"


def test_identical_ids_are_excluded_on_request(project: Path, stage: Any) -> None:
    runs = []
    for params in ("", OWN):
        result = stage("--candidates", "candidates", "--queries", "queries", params=params)
        assert result.status == 0, result
        assert ("identical ids excluded" in result.out) == ("a Q0 a" not in (project / "runs" / "bm25" / "test.trec").read_text())
        runs.append((project / "runs" / "bm25" / "test.trec").read_text())
    assert runs == ["a Q0 a 1 2 bm25\na Q0 b 2 1 bm25\n", "a Q0 b 1 1 bm25\n"]


def test_runs_keep_their_depth_when_identical_ids_are_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.retrieve import dense

    def dense_run(*arguments: Retrieve) -> list[pa.RecordBatch]:
        depth = arguments[4].depth
        rows = [("a", doc, rank, -float(rank)) for rank, doc in enumerate("abcd"[:depth], 1)]
        rows += [("x", doc, rank, -float(rank)) for rank, doc in enumerate("abcd"[:depth], 1)]
        return pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED).to_batches()

    monkeypatch.setattr(dense, "dense_run", dense_run)
    inputs = Namespace(candidates=None, encoder=None, embeddings=None, tokens=None, index=None)
    for ignore, expected in ((False, "abab"), (True, "bcab")):
        params = Retrieve(depth=2, ignore_identical_ids=ignore)
        ranked = pa.Table.from_batches(ranked_lists(inputs, "test", params), RANKED)
        assert "".join(ranked["doc"].to_pylist()) == expected


def test_a_system_needs_either_candidates_or_an_encoder(project: Path, stage: Any) -> None:
    dense = ("--encoder", "e", "--embeddings", "v", "--tokens", "t")
    for arguments in ((), ("--candidates", "candidates"), ("--candidates", "candidates", "--queries", "queries", *dense)):
        assert "expected either --candidates and --queries, or --encoder" in stage(*arguments).err
    assert not (project / "runs").exists()


def test_candidates_do_not_import_torch() -> None:
    code = "import sys, tasks.retrieve.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
