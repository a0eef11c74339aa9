"""Queries searched piece by piece: killed and resumed as undisturbed, by one process as by two."""

import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tasks.bm25 import pieces
from tasks.core.files import folder_digest
from tasks.core.stage.scratch import remove_finished

OUTS = ("index", "candidates", "negatives")


@pytest.fixture
def run(tmp_path: Path, tiny_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run the stage in this process, apart from its workers; returns the digest of its outs."""
    (tmp_path / "params.yaml").write_text("text: {titles: true}\nbm25: {depth: 5, run_depth: 20}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pieces, "QUERIES", 7)  # 40 training queries and 10 of each other split: ten pieces

    def run_stage(out: str, processes: int = 1) -> str:
        arguments = [f"--{name}={out}/{name}" for name in OUTS]
        monkeypatch.setattr(sys, "argv", ["bm25", f"--corpus={tiny_corpus.records}", *arguments])
        module = import_module("tasks.bm25.__main__")
        monkeypatch.setattr(module, "cores", lambda: processes)
        module.main()
        return folder_digest(tmp_path / out)

    return run_stage


def test_processes_change_nothing(run: Any, tmp_path: Path) -> None:
    expected = run("a")
    remove_finished()
    assert not list(tmp_path.glob(".retemper/scratch/bm25/*"))
    assert run("b", 2) == expected


@pytest.mark.parametrize("kill_at", [1, 8])
def test_killed_and_resumed(kill_at: int, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = run("a")
    remove_finished()
    searched, built, real = list[Path](), list[int](), (pieces.search_piece, import_module("tasks.bm25.__main__").build)

    def die_at_piece(piece: pieces.Piece, index: Path, depth: int) -> int:
        if len(searched) == kill_at - 1:
            raise KeyboardInterrupt
        searched.append(piece.path)
        return real[0](piece, index, depth)

    def count_builds(*arguments: Any) -> Any:
        built.append(1)
        return real[1](*arguments)

    monkeypatch.setattr("tasks.bm25.__main__.build", count_builds)
    monkeypatch.setattr(pieces, "search_piece", die_at_piece)
    with pytest.raises(KeyboardInterrupt):
        run("b")
    assert not (tmp_path / "b" / "negatives").exists()
    shutil.rmtree(tmp_path / "b")  # as DVC removes outs before it runs a stage
    first, kill_at = len(searched), 99
    assert run("b") == undisturbed
    assert (len(built), first + len(searched[first:]), len(set(searched))) == (1, 10, 10), "the index and whole pieces are kept"


@pytest.mark.parametrize("name", ["train/000002.parquet", "index/data.csc.index.npy", "index.json"])
def test_corrupt_pieces_are_recomputed(name: str, run: Any, tmp_path: Path) -> None:
    undisturbed = run("a")
    (scratch,) = (tmp_path / ".retemper" / "scratch" / "bm25").iterdir()
    (scratch / name).write_bytes((scratch / name).read_bytes()[:-3])
    shutil.rmtree(tmp_path / "a")
    assert run("a") == undisturbed


def test_other_corpus_does_not_reuse_pieces(run: Any, tmp_path: Path) -> None:
    run("a")
    (tmp_path / "params.yaml").write_text("text: {titles: false}\nbm25: {depth: 5, run_depth: 20}\n")
    assert run("b") != folder_digest(tmp_path / "a")
