"""What tests take from a checkout in which somebody works and has run things, and what they leave."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMITTED = {
    ".dvc/config": "[core]\n    remote = team\n['remote \"team\"']\n    url = /srv/team\n",
    "data/source.json": "{}\n",
    "params.yaml": "rounds: {star: {}}\n",
    "tasks/edited.py": "old\n",
    "tasks/removed.py": "old\n",
    ".gitignore": "runtime.yaml\n",
}
CHANGED = {
    ".dvc/config": "[core]\n    remote = other\n['remote \"other\"']\n    url = /srv/other\n",
    "data/source.json": '{"dataset": {}}\n',
    "params.yaml": "rounds: {}\n",
    "tasks/edited.py": "new\n",
    "tasks/added.py": "new\n",
    "dvc.lock": "stages: {prepare: {}}\n",
    "runtime.yaml": "threads: 9\n",
    "notes.txt": "mine\n",
}


@pytest.mark.parametrize("lock", ["untracked", "committed"])
def test_edited_code_is_taken_and_what_runs_and_people_set_is_not(
    check_out: Callable[[Path, Path], None], tmp_path: Path, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root, folder = tmp_path / "root", tmp_path / "clone"

    def git(cwd: Path, *words: str) -> str:
        author = ["-c", "user.name=toy", "-c", "user.email=toy@example.com"]
        return subprocess.run(["git", *author, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout

    def write_files(files: dict[str, str]) -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    write_files(COMMITTED | ({"dvc.lock": "stages: {}\n"} if lock == "committed" else {}))
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "one")
    write_files(CHANGED)
    (root / "tasks/removed.py").unlink()
    check_out(root, folder)
    assert git(folder, "status", "--porcelain") == ""
    contents = {name: (folder / name).read_text() for name in git(folder, "ls-files").splitlines()}
    config = contents.pop(".dvc/config")
    assert "analytics = false" in config and "remote" not in config
    assert contents == {
        "data/source.json": "{}\n",
        "params.yaml": "rounds: {star: {}}\n",
        "tasks/edited.py": "new\n",
        "tasks/added.py": "new\n",
        ".gitignore": "runtime.yaml\n",
    }


def test_the_project_under_test_is_whole_and_names_no_remote(checkout: Path) -> None:
    assert all((checkout / name).is_file() for name in ("dvc.yaml", "params.yaml", "tasks/train/__main__.py", "benchmarks/kills.py"))
    assert not (checkout / "dvc.lock").exists()
    assert "remote" not in (checkout / ".dvc/config").read_text()


@pytest.mark.usefixtures("capsys")
def test_dvc_prints_to_no_tests_own_stream() -> None:
    """DVC binds its handlers on import. When a test with capsys imported it first, later tests in that process failed."""
    import dvc.logger

    bound = [handler.stream for handler in dvc.logger.logging.getLogger("dvc").handlers if isinstance(handler, dvc.logger.LoggerHandler)]
    assert bound and not {id(sys.stdout), id(sys.stderr)} & {id(stream) for stream in bound}
