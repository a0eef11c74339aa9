"""Locks: one run per folder, and what dead DVC processes left."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.process import locks
from flows.process.locks import hold_run_lock, repair
from tasks.core.errors import UserError


def test_a_second_run_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    lock = tmp_path / ".retemper" / "run.lock"
    with hold_run_lock(lock):
        with pytest.raises(UserError, match=rf"another run is in progress in this folder \(process {os.getpid()}\)"), hold_run_lock(lock):
            pass
        assert lock.read_text() == str(os.getpid()), "a refused run leaves the id of the one in progress"
    with hold_run_lock(lock):
        pass


def test_who_waits_for_a_turn_is_told_so(tmp_path: Path) -> None:
    lock, messages = tmp_path / ".retemper/lock", list[str]()
    with locks.wait_and_hold(lock, pytest.fail):
        pass
    holder = locks.wait_and_hold(lock)
    holder.__enter__()

    def note_and_release() -> None:
        messages.append("another is in progress")
        holder.__exit__(None, None, None)

    with locks.wait_and_hold(lock, note_and_release):
        assert messages == ["another is in progress"]


@pytest.fixture
def rwlock(tmp_path: Path) -> Path:
    path = tmp_path / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(parents=True)
    return path


def lock_record(process: int) -> str:
    return json.dumps({"write": {"/data/x": {"pid": process, "cmd": "dvc repro"}}, "read": {}})


@pytest.mark.parametrize(
    "content", ["", '{"write": {"/da', "[]", lock_record(2**22 + 1), lock_record(os.getpid())], ids=["empty", "cut", "list", "gone", "us"]
)
def test_a_stale_or_broken_record_is_removed(rwlock: Path, content: str) -> None:
    """A process id may be another program's by now: ours is not DVC."""
    rwlock.write_text(content)
    assert repair(rwlock)
    assert not rwlock.exists()


def test_an_empty_record_or_none_is_left(rwlock: Path) -> None:
    assert not repair(rwlock)
    rwlock.write_text("{}")
    assert not repair(rwlock)
    assert rwlock.exists()


def test_a_record_is_left_while_dvc_runs_in_the_folder(rwlock: Path) -> None:
    root = rwlock.parents[2]
    rwlock.write_text("")
    program, titled = root / "dvc", root / "titled"
    program.write_text("import time; print(flush=True); time.sleep(60)")
    titled.write_text(f"from setproctitle import setproctitle; setproctitle('python {program} repro x')\n{program.read_text()}")
    inner = root / ".retemper/sweep/tree-0"
    (inner / ".dvc").mkdir(parents=True)
    (root / "data").mkdir()
    places = (
        (root, program, False),
        (root, titled, False),
        (root / "data", program, False),
        (root.parent, program, True),
        (inner, program, True),
    )
    for folder, script, expected in places:
        rwlock.write_text("")
        dvc = subprocess.Popen([sys.executable, str(script)], cwd=folder, stdout=subprocess.PIPE)
        assert dvc.stdout is not None
        dvc.stdout.readline()
        time.sleep(0.05)
        assert repair(rwlock) is expected
        dvc.kill()
        dvc.wait()


@pytest.mark.parametrize("truncated", ["", "stages:\n  a:\n    cm", "stages:\n  a"])
def test_a_truncated_dvc_lock_is_restored(tmp_path: Path, truncated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock, memory = tmp_path / "dvc.lock", tmp_path / "memory" / "dvc.lock"
    lock.write_text("stages: {}\n")
    assert not locks.restore(lambda: False, lock, memory), "no run was killed"
    locks.remember(lock, memory)
    lock.write_text(truncated)
    assert locks.restore(lambda: True, lock, memory)
    assert lock.read_text() == "stages: {}\n"
    assert not locks.restore(lambda: True, lock, memory), "it is intact"
    assert not locks.restore(lambda: False, lock, memory), "nothing to put back"
    lock.write_text("stages: []\n")
    assert locks.restore(lambda: False, lock, memory), "not truncated, but DVC cannot read it"
    lock.write_text("<<<<<<< mine\n")
    assert not locks.restore(lambda: False, lock, memory), "a conflict is the user's"
    locks.forget(lock, memory, tmp_path / "intact")
    assert not memory.exists()


ENTRIES = "".join(f"  {name}:\n    cmd: x\n" for name in ("prepare", "train@a", "train@b"))


@pytest.mark.parametrize("source", ["last run", "git"])
@pytest.mark.parametrize("truncated", ["", "stages:\n", "stages:\n  prepare:\n    cmd: x\n"])
def test_a_dvc_lock_truncated_to_valid_yaml_is_restored(tmp_path: Path, source: str, truncated: str) -> None:
    """No run was in progress; it can be read, and only has fewer entries."""
    lock, memory, intact = tmp_path / "dvc.lock", tmp_path / "before", tmp_path / "intact"
    intact_text = f"stages:\n{ENTRIES}"
    lock.write_text(intact_text)
    if source == "last run":
        locks.remember(lock, memory)
        locks.forget(lock, memory, intact)

    def restore(committed: str | None) -> str:
        return locks.restore(lambda: True, lock, memory, intact=intact, committed=lambda: committed)

    committed = intact_text if source == "git" else None
    assert restore(committed) == "", "it is intact"
    lock.write_text(truncated)
    assert restore(truncated) == "", "checked out from git as it is"
    message = restore(committed)
    assert "train@a, train@b; restored as" in message
    assert ("git" in message) == (source == "git")
    assert lock.read_text() == intact_text
    lock.write_text(intact_text.replace("cmd: x", "cmd: y"))
    assert restore(committed) == "", "changed, not truncated"


def test_entries_lost_by_a_killed_run_are_restored(tmp_path: Path) -> None:
    """The first stage has changed, so the former dvc.lock does not begin with what is left."""
    lock, memory = tmp_path / "dvc.lock", tmp_path / "before"
    intact = f"stages:\n{ENTRIES}"
    lock.write_text(intact)
    locks.remember(lock, memory)
    lock.write_text("stages:\n  prepare:\n    cmd: y\n")
    committed = lock.read_text()
    assert locks.restore(lambda: True, lock, memory, committed=lambda: committed) == "", "checked out after the kill"
    assert locks.restore(lambda: True, lock, memory, committed=lambda: intact, staged=lambda: committed) == "", "from another revision"
    assert "truncated by a kill" in locks.restore(lambda: True, lock, memory, committed=lambda: intact, staged=lambda: intact)
    assert lock.read_text() == intact
    lock.write_text(intact.replace("cmd: x", "cmd: y"))
    assert locks.restore(lambda: True, lock, memory) == "", "no entry is lost"


def test_a_killed_first_run_leaves_no_dvc_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock, memory = tmp_path / "dvc.lock", tmp_path / "dvc.lock.before"
    locks.remember(lock, memory)
    assert not locks.restore(lambda: False, lock, memory), "killed before there was one"
    lock.write_text("schema: '2.0'\nstag")
    assert locks.restore(lambda: False, lock, memory)
    assert not lock.exists()


def test_a_mistake_in_dvc_yaml_leaves_dvc_lock_alone(finished_toy: Any) -> None:
    lock = finished_toy.folder / "dvc.lock"
    text = lock.read_text()
    memory = finished_toy.folder / ".retemper/dvc.lock"
    memory.write_text("")
    (finished_toy.folder / "dvc.yaml").write_text("stages:\n  prepare:\n    cmds: no such key\n")
    result = finished_toy.call("run")
    assert result.returncode == 2
    assert "dvc.yaml" in result.stderr
    assert "truncated" not in result.stderr
    assert lock.read_text() == text
    finished_toy.command("git", "checkout", "--quiet", "dvc.yaml")
    for truncated in (text[: len(text) // 2], text.replace("  prepare:", "  prepare: 7\n  was:")):
        lock.write_text(truncated)
        memory.write_text(text)
        finished_toy.call("run", "--dry-run")
        assert lock.read_text() == truncated, "a dry run fixes nothing"
    assert "truncated" in finished_toy.call("run").stderr
    assert lock.read_text() == text
    lock.write_text(text[: text.index("\n  report:") + 1])  # valid YAML
    assert "dvc.lock was truncated and had lost report; restored as the last run left it" in finished_toy.call("run").stderr
    assert lock.read_text() == text
    finished_toy.command("git", "add", "dvc.lock")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    (finished_toy.folder / locks.AFTER).unlink()
    lock.write_text(text[: text.index("\n  report:") + 1])
    assert "dvc.lock was truncated and had lost report; restored as git has it" in finished_toy.call("run").stderr
    assert lock.read_text() == text
