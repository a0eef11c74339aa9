"""A project is told what another one's `forget` took from the cache or the remote that they share."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

from flows.process.processes import Processes
from flows.repository.lock import read_lock
from flows.storage import forgettings
from flows.storage.cache import object_path, objects, outs
from flows.storage.small_files import Place
from flows.team import sync
from tasks.core.sources.forgotten import FILE, mark, read_marks

MARK = mark("document", "d1")


@pytest.fixture
def project_with_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's folder, the current one, with a record in its list."""
    folder = tmp_path / "ours"
    folder.mkdir()
    monkeypatch.chdir(folder)
    FILE.write_text(f"# a head\ndocument {MARK} 2026-11-28\n", encoding="utf-8-sig")


def place(root: Path) -> Place:
    return Place(LocalFileSystem(), str(root / forgettings.FOLDER))


def lock_of(**oids: str) -> dict[str, Any]:
    return {stage: {"outs": [{"path": f"data/{stage}", "md5": oid}]} for stage, oid in oids.items()}


@pytest.mark.usefixtures("project_with_list")
def test_a_note_names_what_is_missing_and_is_a_list_of_its_own(tmp_path: Path) -> None:
    cache, remote = tmp_path / "cache", tmp_path / "remote"
    listing, file, kept = f"{'a' * 32}.dir", "b" * 32, "c" * 32
    for root in (cache, remote):
        root.mkdir()
        forgettings.leave_note(place(root), [listing, file, kept])
    forgettings.fetch(cache, LocalFileSystem(), str(remote))
    forgettings.fetch(cache, LocalFileSystem(), str(remote))
    notes = list((cache / forgettings.FOLDER).iterdir())
    assert len(notes) == 2, "the remote's, once"
    cached = object_path(cache / "files/md5", kept)
    cached.parent.mkdir(parents=True)
    cached.write_text("made again")
    lock = lock_of(prepare=listing, bm25=file, tokenize=kept, base="d" * 32)
    assert list(forgettings.explain_missing(cache, lock)) == [], "this project has forgotten it itself"
    FILE.unlink()
    (line,) = forgettings.explain_missing(cache, lock)
    assert line.startswith(
        "prepare, bm25: results of 2 stages that dvc.lock names were removed, since they held a record that project ours "
    )
    assert list(forgettings.explain_missing(cache, lock_of(base="d" * 32))) == []
    (note,) = [path for path in notes if str(path) in line]
    FILE.write_text("".join(text for text in note.read_text().splitlines(keepends=True) if "#" not in text))  # as the line says
    assert read_marks() == {MARK: "document"}
    assert list(forgettings.explain_missing(cache, lock)) == []
    note.write_text("torn")
    assert list(forgettings.explain_missing(cache, lock)) == []


def test_a_forgetting_that_was_killed_and_finished_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two starts leaves a note of what it found, whichever of them is read first."""
    monkeypatch.chdir(tmp_path)
    FILE.write_text(f"document {MARK} 2026-11-28\n")
    for first, second in (("ab", "a"), ("a", "ab"), ("a", "b")):
        cache = tmp_path / f"{first}-{second}"
        for oids in (first, second):
            forgettings.leave_note(place(cache), [letter * 32 for letter in oids])
        FILE.rename("kept")
        (line,) = forgettings.explain_missing(cache, lock_of(prepare="a" * 32, bm25="b" * 32))
        Path("kept").rename(FILE)
        assert line.startswith("prepare, bm25: results of 2 stages that dvc.lock names were removed, ")


def test_trees_of_other_projects_are_named(tmp_path: Path) -> None:
    for name, oid in (("theirs", "a" * 32), ("others", "b" * 32)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dvc.lock").write_text(json.dumps({"stages": lock_of(prepare=oid, bm25="c" * 32)}))
    trees = [tmp_path / "theirs", tmp_path / "others"]
    losses = forgettings.losses(trees, {("data/prepare", "a" * 32), ("data/bm25", "c" * 32)}, {"a" * 32})
    assert list(losses) == [tmp_path / "theirs"], "bm25 is kept, since it is no record's alone"
    assert "this removes results of 1 stage in its dvc.lock (prepare)" in losses[tmp_path / "theirs"]
    owners = forgettings.owners(trees, tmp_path, {"b" * 32, "d" * 32})
    assert owners == {"b" * 32: f"data/prepare of {tmp_path / 'others'}"}


def test_a_run_says_why_a_stage_runs_again(served_toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, once; the stage that lost its out runs, and no other."""
    served_toy.run()
    cache = served_toy.folder / ".dvc/cache"
    (oid, _), *_ = outs(read_lock(served_toy.folder / "dvc.lock")["prepare"])
    other = tmp_path / "another"
    other.mkdir()
    monkeypatch.chdir(other)
    FILE.write_text(f"document {MARK} 2026-11-28\n")
    forgettings.leave_note(place(cache), [oid])
    assert any(path.name == oid[2:] for path in objects(cache / "files/md5"))
    object_path(cache / "files/md5", oid).unlink()
    (served_toy.folder / "data/corpus").unlink()
    result = served_toy.call("run")
    (warning,) = [line for line in result.stderr.splitlines() if "forgotten" in line]
    assert (
        "prepare: results of 1 stage that dvc.lock names were removed, since they held a record that project another has forgotten"
        in warning
    )
    assert "executed 1," in result.stdout
    second = served_toy.call("run")
    assert (second.stderr, "executed 0," in second.stdout) == ("", True)


@pytest.mark.parametrize("other", [None, "e" * 32])
def test_why_a_remote_lacks_an_out_comes_before_that_it_does(other: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where all that it lacks was forgotten, nothing comes after it."""
    cache, folder, oid = tmp_path / "cache", tmp_path / "theirs", f"{'a' * 32}.dir"
    folder.mkdir()
    monkeypatch.chdir(folder)
    FILE.write_text(f"document {MARK} 2026-11-28\n")
    cache.mkdir()
    forgettings.leave_note(place(cache), [oid])
    FILE.unlink()
    lock = lock_of(prepare=oid, **({"base": other} if other else {}))
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": lock}))
    monkeypatch.setattr(sync, "cache_folder", lambda: cache)
    monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", "test $0 = records || { echo 'ERROR: Checkout failed'; exit 1; }"])
    warnings: list[str] = []
    assert sync.pull(Processes(), "team", list(lock), warn=warnings.append)
    assert warnings[0].startswith(
        "prepare: results of 1 stage that dvc.lock names were removed, since they held a record that project theirs"
    )
    assert [line.partition(" that")[0] for line in warnings[1:]] == (["remote team lacks some outs"] if other else [])


def test_a_file_that_a_folder_lacks_is_forgotten_only_where_a_note_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FILE.write_text(f"document {MARK} 2026-11-28\n")
    text = json.dumps([{"md5": "b" * 32, "relpath": "x"}])
    listing = f"{hashlib.md5(text.encode()).hexdigest()}.dir"
    path = object_path(tmp_path / "files/md5", listing)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    forgettings.leave_note(place(tmp_path), [listing])
    FILE.unlink()
    lock = lock_of(prepare=listing)
    assert not forgettings.are_all(tmp_path, lock), "the listing is here, its file is not, and no note names that"
    FILE.write_text(f"document {MARK} 2026-11-28\n")
    forgettings.leave_note(place(tmp_path), ["b" * 32])
    FILE.unlink()
    assert forgettings.are_all(tmp_path, lock)
    assert not forgettings.are_all(tmp_path, {}), "nothing is lacking"
