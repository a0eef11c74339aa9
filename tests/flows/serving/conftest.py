"""A finished project with three commits of champions to come: every out of the small project in DVC's cache and in dvc.lock."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion
from tests.conftest import made_once

GIT = ["git", "-c", "user.name=small", "-c", "user.email=small@example.com"]


@pytest.fixture(scope="session")
def _committed(small_project: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project as if `retemper run` had made it."""

    def make(below: Path) -> None:
        folder = below / "project"
        subprocess.run(["cp", "-r", str(small_project.folder), str(folder)], check=True)
        environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
        names = [name for name in small_project.commands if name.partition("@")[0] not in ("pretrain", "freeze")]
        command = [sys.executable, "-m", "dvc", "commit", "--force", "--quiet", *names]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
        (folder / ".gitignore").write_text((folder / ".gitignore").read_text() + "/tasks/\n/beir/\n")
        for words in (["add", "--all"], ["commit", "--quiet", "-m", "every stage has run"]):
            subprocess.run([*GIT, *words], cwd=folder, check=True, stdout=subprocess.PIPE)

    return made_once(tmp_path_factory, "committed", make) / "project"


@pytest.fixture
def project(_committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, which is the current folder. There is no champion."""
    folder = tmp_path / "project"
    subprocess.run(["cp", "-r", str(_committed), str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def crown(project: Path) -> Callable[[str], champion.Champion]:
    """`crown(model)` makes a model of the project its champion."""

    def by_hand(model: str) -> champion.Champion:
        with chdir(project):
            return champion.choose(project, model)

    return by_hand
