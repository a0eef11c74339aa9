"""A finished project with dvc.lock and cache, for tests that look a record up in all of it."""

import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def dvc_project(small: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`small` as DVC records it: its stages' outputs are in the cache and in dvc.lock. It is the current folder."""
    from dvc.repo import Repo

    small.write(".gitignore", "/.retemper/\n/beir/\n/runtime.yaml\n__pycache__/\n")
    author = ["-c", "user.name=small", "-c", "user.email=small@example.com"]
    with chdir(small.folder):
        monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
        repo = Repo()
        repo.commit(force=True, recursive=True)
        repo.close()
        subprocess.run(["git", "add", "--all"], check=True)
        subprocess.run(["git", *author, "commit", "--quiet", "-m", "computed"], check=True)
        yield small


@pytest.fixture
def root(toy: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy project as the current folder, without the user's settings."""
    monkeypatch.chdir(toy.folder)
    for name in ("DVC_GLOBAL_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, toy.environment[name])
    return Path(toy.folder)
