"""Records of how artifacts were made: kept once, shared through a remote, and told on one line."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

from flows.repository.git import git
from flows.storage import makings

DIGEST, OTHER = "ab" * 32, "cd" * 32
RECORD = {
    "stage": "train@a",
    "by": "Ann <ann@example.org>",
    "at": 1_700_000_000.0,
    "commit": "1a2b3c4d5e",
    "seconds": 92.34,
    "at_least": False,
    "cost": {"peak_mib": 1850.2},
    "environment": {"processor": "One", "torch": "2.13.0"},
}


def test_the_first_record_is_kept_and_torn_ones_are_left_out(tmp_path: Path) -> None:
    makings.save(tmp_path, DIGEST, RECORD)
    makings.save(tmp_path, DIGEST, RECORD | {"by": "Bob"})
    makings.save(tmp_path, OTHER, RECORD)
    makings.record_path(tmp_path, OTHER).write_text('{"stage": "tr')
    assert makings.read(tmp_path, [DIGEST, OTHER, "ef" * 32]) == {DIGEST: RECORD}


def test_two_runs_may_make_a_folder_of_records_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def mkdir_after_other(self: Path, *arguments: Any, **options: Any) -> None:
        self.exists() or mkdir(self)  # by the other run, a moment before
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir_after_other)
    makings.save(tmp_path, DIGEST, RECORD)
    monkeypatch.undo()
    assert makings.read(tmp_path, [DIGEST]) == {DIGEST: RECORD}


@pytest.mark.parametrize("mode", [0o2775, 0o755])
def test_a_groups_cache_stays_the_groups(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    before = os.umask(0o077)
    try:
        makings.save(tmp_path, DIGEST, RECORD)
    finally:
        os.umask(before)
    path = makings.record_path(tmp_path, DIGEST)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path.parent.parent, path.parent, path)] == [mode, mode, mode & 0o666]


def test_a_full_or_missing_cache_costs_the_record_alone(tmp_path: Path) -> None:
    makings.save(tmp_path / "nowhere", DIGEST, RECORD)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / makings.FOLDER).write_text("a file in the way")
    makings.save(tmp_path, DIGEST, RECORD)
    assert makings.read(tmp_path, [DIGEST]) == {}


def test_a_remote_holds_what_either_side_has(tmp_path: Path) -> None:
    one, other, remote, fs = tmp_path / "one", tmp_path / "other", tmp_path / "remote", LocalFileSystem()
    for folder in (one, other, remote):
        folder.mkdir()
    assert makings.fetch(one, fs, str(remote), digests=[DIGEST]) == 0, "nothing there yet"
    makings.save(one, DIGEST, RECORD)
    makings.save(other, OTHER, RECORD | {"by": "Bob"})
    (one / makings.FOLDER / "ab" / "unfinished.tmp").write_text("{")
    assert makings.send(one, fs, str(remote)) == 1
    assert makings.send(one, fs, str(remote)) == 0
    assert makings.fetch(other, fs, str(remote), digests=[DIGEST, OTHER]) == 1
    assert makings.fetch(other, fs, str(remote), digests=[DIGEST]) == 0
    assert {digest: record["by"] for digest, record in makings.read(other, [DIGEST, OTHER]).items()} == {
        DIGEST: "Ann <ann@example.org>",
        OTHER: "Bob",
    }
    assert [path.name for path in (remote / makings.FOLDER).rglob("*.*")] == [f"{DIGEST}.json"]


def test_who_works_at_which_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("config", "user.name", "Ann")
    git("config", "user.email", "ann@example.org")
    assert makings.current_provenance() == {"by": "Ann <ann@example.org>"}
    for name in ("tasks/train.py", "dvc.yaml", "dvc.lock", "notes.md"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    for name in ("dvc.lock", "notes.md"):
        Path(name).write_text("two")
    provenance = makings.current_provenance()
    assert provenance == {"by": "Ann <ann@example.org>", "commit": git("rev-parse", "HEAD")}, "a run writes dvc.lock itself"
    Path("tasks/train.py").write_text("two")
    assert makings.current_provenance() == provenance | {"changed": "code"}


def test_a_record_is_told_on_one_line() -> None:
    assert makings.describe(RECORD) == "Ann, 2023-11-14 22:13 UTC, commit 1a2b3c4, 92.3 s, 1,850 MiB"
    assert makings.describe(RECORD | {"changed": "code", "at_least": True}).startswith(
        "Ann, 2023-11-14 22:13 UTC, commit 1a2b3c4 with changed code, 92.3 s or more"
    )
    assert makings.describe({}) == ""
    assert makings.ran_with(RECORD) == "processor One, torch 2.13.0"
    assert json.loads(json.dumps(RECORD)) == RECORD
