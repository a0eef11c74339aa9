"""A tiny Retemper with a history, and projects made of it: real git, and code that only says what it was asked."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.projects.layout import code_source, lay_out
from flows.projects.upgrade import Wish, upgrade
from tests.conftest import DVC_CONFIG

CHANGELOG = "# Changelog\n\n## Unreleased\n{}"
OLD = "- `a`: something old,\n  on two lines.\n"
SCHEMA = {"properties": {"first": {"default": 1, "description": "of all"}, "gone": {"default": 0}}}
PARAMS = "# ours to edit\nfirst: 1 # of all\nrounds:\n  a: {value: 1}\n"
GRAPH = "stages:\n  one:\n    cmd: true\n\n  two:\n    cmd: true\n\n  three:\n    cmd: true\n"
CODE = "".join(f"line {number}\n" for number in range(12))
MIGRATIONS = """
import argparse, json
from pathlib import Path
known = argparse.ArgumentParser()
known.add_argument("--made")
known.add_argument("--told")
given = known.parse_args()
told = {}
for name in ("params.yaml", "runtime.yaml", "retraining.yaml"):
    path = Path(name)
    text = path.read_text() if path.exists() else ""
    if "first:" in text:
        path.write_text(text.replace("first:", "once:") + "second: 2 # new\\n")
        told[name] = ["first is called once", "second: 2 added"]
Path(given.told).write_text(json.dumps(told))
"""
RUN = """
import json, os, sys
from pathlib import Path
answer = Path("tasks/answer").read_text()
if answer.startswith("fail"):
    Path(os.environ["RETEMPER_PROBLEM"]).write_text(json.dumps([{"kind": "user", "message": answer.strip()}]))
    sys.exit(2)
print("retemper: warning: of something")
print(answer)
"""
PLANNED = [
    {"stage": "one", "why": ["its code"], "reads": []},
    {"stage": "two", "why": [], "reads": ["one"]},
    {"stage": "three", "why": [], "reads": []},
]
FIRST = {
    "pyproject.toml": '[project]\nname = "retemper"\nversion = "0.1.0"\n',
    "constraints.txt": "a==1\n",
    "CHANGELOG.md": CHANGELOG.format(OLD),
    "README.md": "the product's\n",
    "params.yaml": PARAMS,
    "dvc.yaml": GRAPH,
    ".dvc/config": DVC_CONFIG,
    ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    ".gitignore": ".retemper/\n/runtime.yaml\n",
    "data/.gitignore": "/*\n!/.gitignore\n!/source.json\n",
    "data/source.json": "{}\n",
    "docs/params.schema.json": json.dumps(SCHEMA),
    "docs/removed.md": "one\n",
    "flows/__init__.py": "",
    "flows/cli/__init__.py": "",
    "flows/cli/__main__.py": RUN,
    "flows/parameters/__init__.py": "",
    "tasks/__init__.py": "",
    "tasks/answer": json.dumps(PLANNED) + "\n",
    "tasks/code.py": CODE,
    "tests/test_code.py": "one\n",
}
SECOND = {
    "CHANGELOG.md": CHANGELOG.format("- `b`: new.\n" + OLD),
    "README.md": "the product's, newer\n",
    "pyproject.toml": '[project]\nname = "retemper"\nversion = "0.2.0"\n',
    "constraints.txt": "a==2\n",
    "params.yaml": "once: 7\nsecond: 2\n",
    "data/source.json": '{"demo": {}}\n',
    "docs/params.schema.json": json.dumps(
        {"properties": {"first": {"default": 3, "description": "of all"}, "second": {"default": 2, "description": "new"}}}
    ),
    "docs/removed.md": "two\n",
    "docs/added.md": "new\n",
    "flows/parameters/migrations.py": MIGRATIONS,
    "tasks/code.py": CODE.replace("line 2\n", "line two\n"),
    "tasks/new.py": "new\n",
    "tests/test_code.py": "two\n",
    "tests/test_new.py": "new\n",
}


@dataclass
class Repository:
    """A folder under git."""

    folder: Path

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.folder, check=True, capture_output=True, text=True).stdout.rstrip("\n")

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def upgrade(self, **wish: object) -> list[str]:
        """`retemper upgrade` in this folder; the lines that it reports."""
        lines: list[str] = []
        with chdir(self.folder):
            assert upgrade(Wish(**wish), lines.append) == 0  # type: ignore[arg-type]
        return lines

    def state(self) -> tuple[str, str, str, list[str]]:
        """Commit, references, changes, and leftover files."""
        leftovers = [path.name for path in (self.folder / ".retemper").glob("*") if path.name not in ("run.lock", "digests.json")]
        return self.git("rev-parse", "HEAD"), self.git("for-each-ref"), self.git("status", "--porcelain"), leftovers


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A Retemper of one version. git has no settings but an identity."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in (("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_NOSYSTEM", "1")):
        monkeypatch.setenv(name, value)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "toy")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "toy@example.com")
    folder = tmp_path / "retemper"
    folder.mkdir()
    repository = Repository(folder)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit(FIRST, "first")
    return repository


@pytest.fixture
def make_project(source: Repository, tmp_path: Path) -> Callable[[str], Repository]:
    """`make_project("new")` lays a project out from `source`, `make_project("clone")` clones it; both have removed a page of docs."""

    def make(kind: str) -> Repository:
        folder = tmp_path / "project"
        if kind == "new":
            folder.mkdir()
            lay_out(folder, code_source(str(source.folder), tmp_path / "scratch"))
            (folder / "README.md").write_text("mine\n")
        else:
            subprocess.run(["git", "clone", "--quiet", str(source.folder), str(folder)], check=True)
        (folder / "docs/removed.md").unlink()
        shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
        project = Repository(folder)
        project.commit({"params.yaml": PARAMS.replace("value: 1", "value: 9"), "data/source.json": '{"mine": {}}\n'}, "mine")
        return project

    return make
