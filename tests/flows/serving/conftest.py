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
from flows.serving import hub
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


class FakeHub:
    """Hugging Face's API with one repository, `files` by name; without `error`, which it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        import huggingface_hub

        self.files: dict[str, bytes] = {".gitattributes": b""}
        self.messages: list[str] = []
        self.private = False
        monkeypatch.setenv(hub.TOKEN, "hf_secret")

        def create_repo(_: Any, repo: str, *, private: bool, exist_ok: bool) -> str:
            assert exist_ok
            self.private = private
            if error:
                raise error
            return f"https://hub.example/{repo}"

        def hf_hub_download(_: Any, __: str, name: str, *, local_dir: Path) -> str:
            return str(self.download(local_dir, name) / name)

        def create_commit(_: Any, repo: str, operations: list[Any], commit_message: str) -> None:
            self.messages.append(f"{repo}: {commit_message}")
            for operation in operations:
                if isinstance(operation, huggingface_hub.CommitOperationDelete):
                    del self.files[operation.path_in_repo]  # as there, an error if there is none
                else:
                    self.files[operation.path_in_repo] = Path(operation.path_or_fileobj).read_bytes()

        for function in (create_repo, create_commit, hf_hub_download):
            monkeypatch.setattr(huggingface_hub.HfApi, function.__name__, function)
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_: list(self.files))

    def download(self, folder: Path, *names: str) -> Path:
        """What is in the repository, or these files of it, as a download has it."""
        for name in names or self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(self.files[name])
        return folder
