"""`retemper champion` by hand, in a clone."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.champions import champion
from flows.champions.champion import Champion
from flows.cli.operate.champion import rollback, set_champion
from flows.repository.git import git
from flows.repository.tags import TAGS


def test_a_champion_that_is_not_pushed_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rollback in an incident that never reaches the servers. The line says what takes it there."""
    git("init", "--quiet", "--bare", "remote.git", folder=tmp_path)
    git("clone", "--quiet", "remote.git", "clone", folder=tmp_path)
    monkeypatch.chdir(tmp_path / "clone")
    git("commit", "--quiet", "--allow-empty", "-m", "a run")
    commit = git("rev-parse", "HEAD")
    for number in (1, 2):
        champion.crown(Path(), Champion(number, "a", "first", "now", previous=number - 1 or None, commit=commit))
    monkeypatch.setattr(champion, "_crown_by_hand", champion.crown)
    context: Any = SimpleNamespace(obj=False)
    assert rollback(context) == 0
    assert capsys.readouterr().err == ""
    shutil.move(tmp_path / "remote.git", tmp_path / "away.git")
    assert set_champion(context, "champion/2") == 1
    out, err = capsys.readouterr()
    assert out.startswith("champion/4: a (set)"), "it is crowned here"
    line = err.splitlines()[-1]
    assert "branch and tags are not pushed (" in line and "; no other machine has champion/4; once it is available: git push " in line
    shutil.move(tmp_path / "away.git", tmp_path / "remote.git")
    git(*line.rpartition("available: git ")[2].split())
    assert f"{TAGS}4" in git("ls-remote", "origin")
