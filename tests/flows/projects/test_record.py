"""The source that a project records is one that `retemper upgrade` can read, from wherever the project is."""

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from flows.projects import record, upgrade
from flows.projects.record import Record, is_url, recorded_name
from tasks.core.errors import UserError

from .conftest import Repository


def clone_of(source: Repository, place: Path, origin: str) -> Path:
    """A clone that knows its origin by another name."""
    place.parent.mkdir(exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(source.folder), str(place)], check=True)
    subprocess.run(["git", "remote", "set-url", "origin", origin], cwd=place, check=True)
    return place


@pytest.mark.parametrize("origin", ["work:me/retemper.git", "git@host:me/retemper", "ssh://host/retemper", "work:~/r"])
def test_a_place_on_another_machine_is_recorded_and_read_as_it_is(source: Repository, tmp_path: Path, origin: str) -> None:
    """Also HOST:PATH without a user, as with an alias of ~/.ssh/config."""
    clone = clone_of(source, tmp_path / "there/clone", origin)
    recorded = recorded_name(str(clone), source.git("rev-parse", "HEAD"))
    assert recorded == origin
    assert upgrade._source("", Record(recorded, "1", "c")) == origin


def test_a_relative_origin_is_recorded_as_the_folder_that_git_means(
    source: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = clone_of(source, tmp_path / "there/clone", "../../retemper")
    recorded = recorded_name(str(clone), source.git("rev-parse", "HEAD"))
    assert recorded == str(source.folder)
    (tmp_path / "project/deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project/deeper")
    assert upgrade._source("", Record(recorded, "1", "c")) == str(source.folder)


def test_a_folder_with_a_colon_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a:b").mkdir()
    assert not is_url("a:b") and is_url("a:c") and is_url("a:b", tmp_path.parent)
    assert not is_url("./a:c") and not is_url(f"{tmp_path}/x@y:z") and not is_url("nowhere")
    assert upgrade._source("a:b", None) == str(tmp_path / "a:b")
    with pytest.raises(UserError, match=r"^\./a:c: no such folder"):
        upgrade._source("./a:c", None)


def test_the_version_of_the_running_code_is_that_of_its_record_or_its_checkout(
    source: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "CHECKOUT", source.folder)
    first, second = record.running().splitlines()
    number = tomllib.loads((source.folder / "pyproject.toml").read_text())["project"]["version"]
    assert first == f"retemper {number} (commit {source.git('rev-parse', 'HEAD')[:12]}), {source.folder}"
    assert f"torch {metadata.version('torch')}" in second
    monkeypatch.setattr(record, "CHECKOUT", tmp_path)
    (tmp_path / ".git").mkdir()  # of the project, whose commits are not Retemper's
    (tmp_path / record.RECORD).write_text(Record("/there", "9.8.7", "0123456789abcdef").text)
    assert record.running().startswith(f"retemper 9.8.7 (commit 0123456789ab), {tmp_path}\n")
