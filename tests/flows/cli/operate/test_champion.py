"""`retemper champion` by hand, in a clone."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.tree import BRANCH
from flows.cli.operate.champion import push, rollback, set_champion
from flows.repository.git import git
from flows.repository.tags import TAGS
from tasks.core.errors import UserError

LOCK = """
schema: '2.0'
stages:
  train@star: {{outs: [{{path: data/encoders/star, md5: {0}}}]}}
  index@star: {{outs: [{{path: data/indexes/star, md5: of_{0}}}]}}
"""
CONTEXT: Any = SimpleNamespace(obj=False)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git remote whose branch of retrainings has a newer model than main, which has had a commit of settings since they parted."""
    monkeypatch.setattr(champion.outs, "refuse_lost", lambda *_, **__: None)
    monkeypatch.setattr(champion, "metrics_of", lambda *_: {})
    git("init", "--quiet", "--initial-branch", "main", "project", folder=tmp_path)
    monkeypatch.chdir(tmp_path / "project")
    Path("data").mkdir()
    Path("data/source.json").write_text("{}")
    Path("dvc.yaml").write_text("stages: {train: {foreach: '${rounds}', do: {cmd: x}}, index: {foreach: '${rounds}', do: {cmd: x}}}\n")
    Path("params.yaml").write_text("rounds: {star: {}}\n")
    for made, branch in (("old", "main"), ("retrained", "retemper/retraining")):
        git("checkout", "--quiet", "-B", branch)
        Path("dvc.lock").write_text(LOCK.format(made))
        git("add", ".")
        git("commit", "--quiet", "-m", made)
    git("checkout", "--quiet", "main")
    git("commit", "--quiet", "--allow-empty", "-m", "settings alone")
    git("clone", "--quiet", "--bare", ".", "../remote.git")
    return tmp_path / "remote.git"


@pytest.mark.parametrize("depth", [[], ["--depth=1"]])
def test_a_shallow_clone_does_not_take_an_old_model_for_a_newer_one(
    depth: list[str], remote: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git("clone", "--quiet", *depth, remote.as_uri(), "clone", folder=remote.parent)
    monkeypatch.chdir(remote.parent / "clone")
    assert set_champion(CONTEXT, "star") == 0
    assert capsys.readouterr().err == ""
    crowned = champion.current(Path())
    assert crowned and crowned.digests["encoder"] == "retrained"


def test_the_last_retraining_is_known_in_a_new_clone_whose_remote_is_away(
    remote: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git("clone", "--quiet", "remote.git", "clone", folder=remote.parent)
    shutil.move(remote, remote.with_name("away.git"))
    monkeypatch.chdir(remote.parent / "clone")
    assert set_champion(CONTEXT, "star") == 1
    assert "cannot be asked for other machines' champions" in capsys.readouterr().err
    crowned = champion.current(Path())
    assert crowned and crowned.digests["encoder"] == "retrained"


@pytest.mark.usefixtures("remote")
def test_a_model_of_head_is_not_recorded_without_what_its_run_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Its record would have the corpus of the new data, and the source of the old."""
    assert set_champion(CONTEXT, "HEAD:star") == 0
    assert capsys.readouterr().err == ""
    for name in ("data/source.json", "params.yaml"):
        Path(name).write_text(Path(name).read_text() + " \n")
    assert set_champion(CONTEXT, "HEAD:star") == 0
    expected = "retemper: warning: data/source.json, params.yaml: found uncommitted changes, which champion/2 is recorded without; "
    assert capsys.readouterr().err.startswith(expected)
    assert set_champion(CONTEXT, "champion/1") == 0
    assert capsys.readouterr().err == "", "its record was made before"


def test_a_champion_that_is_not_pushed_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rollback in an incident that never reaches the servers. The line says what takes it there, with all that was not pushed before."""
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
    record = git("commit-tree", f"{commit}^{{tree}}", "-p", commit, "-m", "a retraining")
    champion.crown(Path(), Champion(4, "a", "promoted", "now", previous=3, commit=record), (record, None))
    assert set_champion(context, "champion/2") == 1
    out, err = capsys.readouterr()
    assert out.startswith("champion/5: a (set)"), "it is crowned here"
    line = err.splitlines()[-1]
    assert "branch and tags are not pushed (" in line
    assert line.endswith("; no other machine has champion/5; once it is available: retemper champion push")
    assert push(context) == 1
    shutil.move(tmp_path / "away.git", tmp_path / "remote.git")
    assert push(context) == 0
    there = git("ls-remote", "origin")
    assert all(name in there for name in (f"{TAGS}4", f"{TAGS}5", BRANCH))


@pytest.mark.usefixtures("remote")
def test_a_push_without_a_remote_is_refused() -> None:
    """It ended as after a push."""
    with pytest.raises(UserError, match=r"^champion push: found no git remote, expected one that all machines share; git remote add"):
        push(CONTEXT)
