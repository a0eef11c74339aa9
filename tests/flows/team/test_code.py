"""Code in git's history: which commit has it, with few git processes, and in a git hook too."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from flows.repository.git import GitFailed, git
from flows.storage.cache import file_md5
from flows.team import remotes
from flows.team.code import Code
from tasks.core.errors import UserError
from tasks.core.stage.code import Reader

FILES = (  # of three commits; the second has a folder where the first has a file, and the third the other way round
    {
        "tasks/a/__main__.py": b"print(1)\n",
        "tasks/a/page": b"\xff\r\n\n",
        "tasks/b/__main__.py": b"from tasks.old import x\n",
        "tasks/old.py": b"x = 1\n",
    },
    {"tasks/a/__main__.py": b"print(1)\n", "tasks/a/page/x": b"\n", "tasks/b/__main__.py": b"from tasks.old import x\n"},
    {"tasks/a/__main__.py": b"print([2])\n", "tasks/a/page": b"", "tasks/b/__main__.py": b"from tasks.old import x\n"},
)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of a project in a folder of a repository, latest first; the project is the current folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    for files in FILES:
        git("rm", "-r", "--quiet", "--ignore-unmatch", ".")
        write(files, Path())
        git("add", ".")
        git("commit", "--quiet", "-m", "code")
    return git("log", "--format=%H").splitlines()


def write(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_each_commit_has_the_digests_of_its_own_files(history: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the same files, written to an empty folder. git sets GIT_DIR for a hook, relative to the top folder."""
    monkeypatch.setenv("GIT_DIR", ".git")
    code, commits = Code("HEAD"), history[::-1]
    for number in (0, 1, 2, 0):
        write(FILES[number], tmp_path / f"alone{number}")
        assert code._code_of(commits[number]).stage_digests() == Reader(tmp_path / f"alone{number}").stage_digests()
    digests = Reader(tmp_path / "alone0").stage_digests()
    assert [code.commit_of_stage(stage, digests[stage]) for stage in "ab"] == [commits[0], commits[0]]
    (tmp_path / "page").write_bytes(FILES[0]["tasks/a/page"])
    assert code.commit("tasks/a/page", file_md5(tmp_path / "page")) == commits[0]
    assert code.commit("tasks/a/page", "0" * 32) == code.commit("none", "0" * 32) == code.commit_of_stage("a", "0" * 64) == ""


def test_a_commit_takes_one_process_however_many_files_it_has(history: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each file, a lineage that searched 100 commits of 355 files took six minutes."""
    calls: list[Any] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: calls.append(command) or run(command, **options))
    code = Code("HEAD")
    assert code.commit_of_stage("a", "0" * 64) == ""
    assert sum("cat-file" in call for call in calls) == len(history)
    code.commit_of_stage("b", "0" * 64)
    assert sum("cat-file" in call for call in calls) == len(history), "nothing is read again"


def test_a_missing_object_is_one_line(history: list[str], tmp_path: Path) -> None:
    blob = git("rev-parse", f"{history[0]}:./tasks/a/__main__.py")
    (tmp_path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(GitFailed, match=rf"^git cat-file: {blob}: missing; fetch it again"):
        Code("HEAD").commit_of_stage("a", "0" * 64)


@pytest.mark.usefixtures("history")
def test_a_secret_is_taken_in_a_hook_where_git_ignores_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".gitignore").write_text("/.dvc/config.local\n")
    Repo.init(subdir=True).close()
    monkeypatch.setenv("GIT_DIR", ".git")
    remotes._write("team", {"url": "s3://bucket"}, {"secret_access_key": "hunter2"})
    assert "hunter2" in Path(".dvc/config.local").read_text()
    Path(".gitignore").write_text("")
    Path(".dvc/.gitignore").write_text("")
    with pytest.raises(UserError, match="git does not ignore it"):
        remotes._write("team", {"url": "s3://bucket"}, {"secret_access_key": "hunter2"})


def test_a_search_that_ends_early_does_not_say_uncommitted(history: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code("HEAD")
    assert {code.absence(limited=limited) for limited in (True, False)} == {"uncommitted"}
    monkeypatch.setattr("flows.team.code.LOOKED_AT", len(history))
    assert [code.absence(limited=limited) for limited in (True, False)] == ["not in the last 3 commits of tasks", "uncommitted"]
    git("clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(tmp_path / "clone"))
    monkeypatch.chdir(tmp_path / "clone/project")
    assert Code("HEAD").absence(limited=False) == "not in git's history here, which is shallow"
