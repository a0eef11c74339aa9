"""A finished project takes its place: what others made there meanwhile is kept, and the place may be a mount."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from flows.projects import new
from tasks.core.errors import UserError


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Path, Path]:
    """A finished project, and the empty folder that it moves to."""
    project, folder = tmp_path / ".retemper-new-x", tmp_path / "mine"
    (project / ".git").mkdir(parents=True)
    folder.mkdir()
    (project / ".git/HEAD").write_text("ours")
    (project / "README.md").write_text("ours")
    return project, folder


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_the_user_makes_while_the_data_is_checked_is_kept(moved: tuple[Path, Path]) -> None:
    """The undo of the failed move removed all of the folder, the user's own .git too."""
    project, folder = moved
    (folder / ".git").mkdir()
    for name in (".git/HEAD", "thesis.md"):
        (folder / name).write_text("the user's")
    with pytest.raises(UserError, match=f"^{folder}: found a folder with files, expected a new or empty one; name another$"):
        new._move(project, folder)
    assert contents(folder) == {".git/HEAD": "the user's", "thesis.md": "the user's"}


def test_a_failed_move_removes_only_what_it_moved(moved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    project, folder = moved
    move, written = shutil.move, dict[str, str]()

    def move_and_write(source: Path, target: Path) -> None:
        move(source, target)
        for name in ("thesis.md", *(path.name for path in project.iterdir())):
            (folder / name).write_text("the user's")
            written[name] = "the user's"

    monkeypatch.setattr(shutil, "move", move_and_write)
    with pytest.raises(UserError, match=f"^{folder}/(.git|README.md): was made by another program while the project moved there; name an"):
        new._move(project, folder)
    assert contents(folder) == written and len(written) == 2


def test_a_folder_on_another_file_system_becomes_a_project(moved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount: nothing can be renamed to it."""
    project, folder = moved
    before = contents(project)

    def refuse(*paths: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), *paths)

    monkeypatch.setattr(os, "rename", refuse)
    new._move(project, folder)
    assert contents(folder) == before and not contents(project)
