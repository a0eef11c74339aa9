"""Temporary trees of other machines keep what they need in the cache: garbage collection names them, since nobody here can remove them."""

import os
from pathlib import Path

import pytest

from flows.process.owners import machine
from flows.repository.lock import commit_of
from flows.repository.worktree import make_worktree, tree_place
from flows.team import gc


def test_gc_names_the_trees_that_killed_commands_of_other_machines_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's host name and PID namespace end with it, so its trees were another machine's for ever, and kept their objects."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    own, foreign, older = (
        root / ".retemper" / name for name in (f"evaluate-{machine()}-{os.getpid()}-a-b", "reproduce-0a1b2c3d-17-x", "upgrade-9-y")
    )
    for tree in (own, tree_place(foreign), older, root / ".retemper/retraining"):
        make_worktree(tree, commit_of("HEAD"))
    lines: list[str] = []
    gc.collect(True, None, lines.append)
    words = "kept: what {0} needs; if the command of another machine or container that made it has ended: rm -rf {0}"
    assert sorted(line for line in lines if "needs;" in line) == [words.format(folder) for folder in (foreign, older)]
