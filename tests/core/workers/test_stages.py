"""Stages with one worker and with several: every output file has the same bytes."""

import shutil
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from tasks.core.files import folder_digest
from tasks.core.retrieval import queries as core_queries
from tasks.encode.shards import boundaries
from tasks.rerank import __main__ as rerank
from tasks.teacher import pieces

STAGES = ["encode@warmup", "mine@warmup", "retrieve@warmup", "teacher@ce", "rerank@crossed"]


@pytest.fixture
def project(small: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    make_pieces_small(small, monkeypatch)
    return small


def make_pieces_small(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of a few rows each, so that there is some for everyone."""
    monkeypatch.setattr(import_module("tasks.encode.__main__"), "boundaries", partial(boundaries, mean_rows=5))
    monkeypatch.setattr(core_queries, "HELD", 1)
    monkeypatch.setattr(core_queries, "FEWEST", 4)
    monkeypatch.setattr(pieces, "PIECE", 9)
    monkeypatch.setattr(rerank, "QUERIES", 2)
    small.set("mine.warmup.search", "embeddings")


def run_and_digest(project: Any, stage: str, runtime: str) -> dict[str, str]:
    """The digests of a stage's outs with other settings; nothing of an earlier run is reused."""
    shutil.rmtree(project.folder / ".retemper", ignore_errors=True)
    shutil.rmtree(project.folder / "again", ignore_errors=True)
    project.write("runtime.yaml", f"device: cpu\nthreads: 1\n{runtime}")
    options = ["--vectors", "data/embeddings/warmup"] if stage.startswith("mine") else []
    result = project.stage(stage, *options, *project.elsewhere(stage, "again"))
    assert result.status == 0, result
    outs = [project.folder / "again" / out for out in project.outs[stage]]
    return {out.name: folder_digest(out) for out in outs if out.is_dir()}


def test_two_workers_encode_what_one_does(project: Any) -> None:
    expected = run_and_digest(project, "encode@warmup", "")
    assert expected and run_and_digest(project, "encode@warmup", "workers: 2") == expected
    leftovers = [path for path in (project.folder / ".retemper").rglob("*.npy") if "now" in path.parts]
    assert not leftovers, "what workers wrote was moved"


@pytest.mark.heavy
@pytest.mark.parametrize("stage", STAGES)
def test_any_number_of_workers_makes_what_one_makes(stage: str, project: Any) -> None:
    expected = run_and_digest(project, stage, "")
    assert expected
    for count in (2, 3):
        assert run_and_digest(project, stage, f"workers: {count}") == expected
