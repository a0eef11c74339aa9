"""A finished project with its outs in DVC's cache and in dvc.lock, ready to have champions."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion
from tests.conftest import made_once

STAGES = ("prepare", "base", "tokenize", "bm25", "train@warmup", "encode@warmup", "index@warmup", "adore@tower", "retrieve_adore@tower")
STAGES += ("evaluate@warmup", "evaluate_adore@tower", "fuse@hybrid", "evaluate_fuse@hybrid")
UNUSED = ("analyses", "rerankers", "studies", "taught", "teacher")
GIT = ["git", "-c", "user.name=small", "-c", "user.email=small@example.com"]


@pytest.fixture(scope="session")
def _committed_project(small_project: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project as if `retemper run` had made what hybrid needs."""

    def make(below: Path) -> None:
        folder = below / "project"
        shutil.copytree(small_project.folder, folder, symlinks=True, ignore=shutil.ignore_patterns(*UNUSED))
        command = [sys.executable, "-m", "dvc", "commit", "--force", "--quiet", *STAGES]
        subprocess.run(command, cwd=folder, env=os.environ | {"DVC_NO_ANALYTICS": "1"}, check=True, stdout=subprocess.PIPE)
        (folder / ".gitignore").write_text((folder / ".gitignore").read_text() + "/tasks/\n/beir/\n")
        for words in (["add", "--all"], ["commit", "--quiet", "-m", "every stage has run"]):
            subprocess.run([*GIT, *words], cwd=folder, check=True, stdout=subprocess.PIPE)

    return made_once(tmp_path_factory, "committed", make) / "project"


@pytest.fixture
def project(_committed_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, which is the current folder; its data are links, so change none in place. There is no champion."""
    folder = tmp_path / "project"

    def copy(source: str, target: str) -> None:
        (os.link if f"{_committed_project}/data/" in source or "/.dvc/cache/" in source else shutil.copy2)(source, target)

    shutil.copytree(_committed_project, folder, copy_function=copy, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def crown(project: Path) -> Callable[[str], champion.Champion]:
    """`crown(model)` makes a model of the project its champion."""
    return lambda model: champion.choose(project, model)
