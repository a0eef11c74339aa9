"""Queries searched piece by piece: killed and resumed as undisturbed, by one process as by two."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tasks.bm25 import pieces
from tasks.core.files import folder_digest
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import remove_finished
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED

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

    def die_at_piece(piece: pieces.Piece, index: Path, depth: int) -> pieces.Searched:
        if len(searched) == kill_at - 1:
            raise KeyboardInterrupt
        result = real[0](piece, index, depth)
        if result.fresh:
            searched.append(piece.path)
        return result

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


def test_the_stage_first_looks_for_a_piece_when_a_worker_has_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, the machine that looked for a missing file does not see for a while that another one has written it."""
    monkeypatch.setattr(pieces, "QUERIES", 2)
    kept, looked, given = {1}, list[Path](), list[Path]()
    monkeypatch.setattr(pieces, "is_sealed", lambda path: looked.append(path) or int(path.stem) in kept)
    monkeypatch.setattr(pieces, "load", lambda *_, **__: (None, None, None))
    monkeypatch.setattr(pieces, "ranked", lambda *_: [])

    def each(function: Callable[[pieces.Piece], pieces.Searched], work: Iterable[pieces.Piece]) -> Iterator[pieces.Searched]:
        for piece in work:
            assert piece.path not in looked
            given.append(piece.path)
            yield function(piece)

    queries, progress = [(f"q{n}", list[int]()) for n in range(5)], Progress("queries", 5)
    (tmp_path / "dev").mkdir()
    write_table(tmp_path / "dev/000001.parquet", RANKED, [])
    before = (tmp_path / "dev/000001.parquet").stat().st_mtime_ns
    assert len(list(pieces.search_all(queries, tmp_path / "index", 3, tmp_path / "dev", progress, each))) == 3
    assert given == [tmp_path / f"dev/{number:06}.parquet" for number in range(3)]
    assert (tmp_path / "dev/000001.parquet").stat().st_mtime_ns == before, "found, so not searched again"
    assert (progress.done, progress.resumed) == (5, 2)


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
