"""The worktree of retrainings: names, and locks of dead processes."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.champions import tree
from flows.champions.tree import hold_for_dry_run, hold_for_retraining, uncommitted
from flows.repository.git import git
from flows.repository.tags import TAGS
from tasks.core.errors import UserError


def test_names_that_stand_in_the_way_are_refused_before_anything_runs(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    hook = tmp_path / ".git/hooks/post-checkout"  # as `dvc install` makes it; git checkout then ends with its status
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    git("commit", "--quiet", "--allow-empty", "-m", "first", folder=tmp_path)
    git("checkout", "--quiet", "-b", "retemper", folder=tmp_path)
    with pytest.raises(UserError, match=r"refs/heads/retemper: .* git branch -m retemper NEW"):
        tree.prepare(tmp_path, "HEAD", lambda _: None)
    git("branch", "-m", "retemper", "NEW", folder=tmp_path)
    git("tag", "champion", folder=tmp_path)
    with pytest.raises(UserError, match=r"refs/tags/champion: .* git tag NEW champion && git tag -d champion"):
        tree.prepare(tmp_path, "HEAD", lambda _: None)
    git("tag", "-d", "champion", folder=tmp_path)
    git("update-ref", tree.BRANCH, "HEAD", folder=tmp_path)
    git("update-ref", f"{TAGS}1", "HEAD", folder=tmp_path)
    tree.refuse_taken_names(tmp_path)


def test_locks_of_a_dead_git_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "equip", lambda *_: None)  # DVC's, of which there is none here
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "first", folder=tmp_path)
    packed = tmp_path / ".git/packed-refs.lock"
    locks = [tmp_path / ".git" / name for name in (f"{tree.BRANCH}.lock", f"{TAGS}7.lock", f"{tree.SUPERSEDED}champion-2-ab.lock")]
    for lock in (*locks, packed):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    tree.prepare(tmp_path, "HEAD", lambda _: None)
    assert not any(lock.exists() for lock in locks)
    assert packed.exists(), "git gc may hold it"
    os.utime(packed, (0, 0))
    own = Path(git("rev-parse", "--absolute-git-dir", folder=tmp_path / tree.FOLDER))
    for name in ("index.lock", "HEAD.lock"):
        (own / name).touch()
    tree.prepare(tmp_path, "HEAD", lambda _: None)
    assert not packed.exists()


def test_settings_that_are_not_committed_are_known(tmp_path: Path) -> None:
    """A retraining at HEAD goes without them, so it says so."""
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "params.yaml").write_text("a: 1\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "x", folder=tmp_path)
    (tmp_path / "other.yaml").write_text("")
    assert uncommitted(tmp_path) == []
    (tmp_path / "retraining.yaml").write_text("")
    assert uncommitted(tmp_path) == ["retraining.yaml"]
    (tmp_path / "params.yaml").write_text("a: 2\n")
    assert uncommitted(tmp_path) == ["params.yaml", "retraining.yaml"]


def test_a_retraining_waits_for_a_dry_run_and_not_for_another_retraining(tmp_path: Path) -> None:
    events, looking, release = list[str](), threading.Event(), threading.Event()

    def dry_run() -> None:
        with hold_for_dry_run(tmp_path):
            looking.set()
            assert release.wait(60)
            events.append("looked")

    def note_wait() -> None:
        events.append("waiting")
        release.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(dry_run)
        assert looking.wait(60)
        with hold_for_retraining(tmp_path, note_wait):
            events.append("retrains")
            for other in (hold_for_retraining, hold_for_dry_run):
                with pytest.raises(UserError, match="another run is in progress"), other(tmp_path):
                    pass
        future.result()
    assert events == ["waiting", "looked", "retrains"]


def test_a_dry_run_that_was_suspended_does_not_block_all_retrainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WAIT_SECONDS", 0.0)
    waits: list[str] = []
    refused = pytest.raises(UserError, match=r"retraining.look.lock: another process has held it for 0 s; find it \(fuser ")
    with (
        hold_for_dry_run(tmp_path),
        refused,
        hold_for_retraining(tmp_path, lambda: waits.append("waiting")),
    ):
        pass
    assert waits == ["waiting"]
    with hold_for_retraining(tmp_path):
        pass
