"""The project in the current folder: what it cannot be."""

import os
from pathlib import Path
from typing import Any

import pytest
from dvc.config import Config, ConfigError
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.state import State
from dvc_objects.fs import LocalFileSystem

from flows.repository.project import (
    dvc_errors,
    edit_settings,
    project_folder,
    refuse_settings,
    replace_corrupt_state,
    repository,
    settings_errors,
)
from tasks.core.errors import UserError


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
    config = Config(str(tmp_path), validate=False).load_one("local")
    assert (config["cache"]["dir"], config["remote"]["team"]["url"]) == (str(tmp_path / "Puffer ü"), str(tmp_path / "Straße 日本"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[core]\n    remote = a\n[core]\n    x = 1\n", r":3: found section \[core\] again, expected it once; merge the two"),
        ("[core]\n    remote = a\n    remote = secret\n", ":3: found key remote again, expected it once; merge the two"),
        ("[core]\n    password secret\n", ":2: cannot be read, expected a line .*; fix the line"),
        ("[core\n", ":1: cannot be read, expected a line .*; fix the line"),
        ("[core]\n    password = 'secret\n[cache]\nx\n", ":2: cannot be read, expected a line .*; fix the line"),
        ("[core]\n<<<<<<< HEAD\n    x = 1\n=======\n", ":2: found a merge conflict marker; keep one side .*"),
        ("[core]\n    x = \xfc\n", ": not UTF-8 at byte 15; save it as UTF-8"),
    ],
)
def test_settings_that_dvc_cannot_read_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError):
        Config.load_file(str(path))
    with pytest.raises(UserError, match=f"^{path}{message}$") as error:
        refuse_settings(path)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[core]\n    remote = ü\n['remote \"ü\"']\n    url = /x # y\n", "# [core]\n[core]\n[cache]\n", None])
def test_settings_that_dvc_can_read_are_not_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config").write_text(text)
        Config.load_file(str(tmp_path / "config"))
    refuse_settings(tmp_path / "config")


@pytest.mark.parametrize("translated", [dvc_errors, settings_errors])
def test_settings_that_dvc_refuses_are_a_mistake_of_the_user(translated: Any, tmp_path: Path) -> None:
    """Before, the first said dvc.yaml, and commands that read them elsewhere ended in a traceback."""
    (tmp_path / "config").write_text("[core]\n    foo = 1\n")
    with (
        pytest.raises(UserError, match=r"^\.dvc/config \(or .*\): refused by DVC \(extra keys not allowed .*'foo'.*\); fix it"),
        translated(),
    ):
        Config(str(tmp_path))
    with pytest.raises(KeyError), translated():
        raise KeyError("a bug")


@pytest.mark.parametrize("damage", ["zeros", "half", "none"])
def test_a_corrupt_memory_of_dvc_is_replaced(tmp_path: Path, damage: str) -> None:
    replace_corrupt_state()
    state = State(str(tmp_path), str(tmp_path / "site"))
    files = [tmp_path / f"{number}.txt" for number in range(200)]
    for file in files:
        file.write_text(file.name)
        state.save(str(file), LocalFileSystem(), HashInfo("md5", "0" * 32))
    state.close()
    for database in (tmp_path / "site").rglob("*.db"):
        content = database.read_bytes()
        if damage != "none":
            database.write_bytes(bytes(len(content)) if damage == "zeros" else content[: len(content) // 2])
    state = State(str(tmp_path), str(tmp_path / "site"))
    known = state.get(str(files[0]), LocalFileSystem())[1]
    assert (known is not None) == (damage == "none")
    state.save(str(files[0]), LocalFileSystem(), HashInfo("md5", "1" * 32))
    known = state.get(str(files[0]), LocalFileSystem())[1]
    assert known is not None and known.value == "1" * 32
    state.close()


def test_a_project_opens_for_a_user_without_a_name(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the command line named the user, so each retraining that a worker of Prefect started failed in a container with RUN_AS."""

    def getuser() -> str:
        return os.environ["LOGNAME"]  # as it would be in such a container

    monkeypatch.setenv("LOGNAME", "before")
    monkeypatch.delenv("LOGNAME")
    monkeypatch.setattr("getpass.getuser", getuser)
    with repository(toy.folder) as repo:
        assert Path(repo.root_dir) == toy.folder
    assert os.environ["LOGNAME"] == str(os.getuid())
