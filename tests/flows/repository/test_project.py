"""The project in the current folder: what it cannot be."""

from pathlib import Path

import pytest
from dvc.config import Config

from flows.repository.project import edit_settings, project_folder
from tasks.core.stage.errors import UserError


def test_a_colon_in_the_path_of_a_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH would be two folders, so that the installed code ran in place of the project's."""
    folder = tmp_path / "a:b/project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=rf"^{folder}: found ':' in the folder's name, which separates folders in PYTHONPATH; rename it$"):
        project_folder()


def test_settings_hold_paths_of_any_letters(tmp_path: Path) -> None:
    """DVC writes its settings as ASCII, and on another letter leaves an empty file."""
    with edit_settings(Config(str(tmp_path), validate=False), "local") as edited:
        edited["cache"]["dir"] = str(tmp_path / "Puffer ü")
        edited["remote"]["team"] = {"url": str(tmp_path / "Straße 日本")}
    read = Config(str(tmp_path), validate=False).load_one("local")
    assert (read["cache"]["dir"], read["remote"]["team"]["url"]) == (str(tmp_path / "Puffer ü"), str(tmp_path / "Straße 日本"))
