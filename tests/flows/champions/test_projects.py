"""Two projects in one repository: champions are a project's, and only one can be retrained."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.champions import champion, machines, tree
from flows.champions.champion import Champion
from flows.cli.operate.retrain import retrain
from flows.repository.git import git
from flows.repository.tags import refuse_other_projects
from flows.retraining import decision
from flows.team import exposure
from tasks.core.errors import UserError

REFUSED = "champion/1 is of law/, another project of this repository, and only one of a repository can be retrained; move this one"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    for name in ("law", "medicine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "params.yaml").write_text("seed: 1\n")
        (folder / name / "dvc.lock").write_text(f"stages: {{train@{name}: {{cmd: 'true'}}}}\n")
    git("init", "--quiet", folder=folder)
    git("add", ".", folder=folder)
    git("commit", "--quiet", "-m", "two projects", folder=folder)
    return folder


def crown(project: Path, model: str, cause: str = "first") -> Champion:
    number = max((one.number for one in champion.read_champions(project)), default=0) + 1
    return champion.crown(project, Champion(number, model, cause, "now", commit=git("rev-parse", "HEAD", folder=project)))


def test_champions_of_another_project_are_left_out_and_it_is_not_retrained(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one took the first one's model for its champion, compared with it, and served it."""
    law, medicine = repository / "law", repository / "medicine"
    first = crown(law, "of_law")
    assert (first.prefix, champion.read_champions(law), champion.read_champions(medicine)) == ("law/", [first], [])
    git("worktree", "add", "--quiet", "--detach", "../tree", folder=repository)
    assert champion.read_champions(repository.parent / "tree/law") == [first], "as in the retrainings' worktree"
    assert champion.read_champions(repository) == []
    refuse_other_projects(law)
    with pytest.raises(UserError, match=REFUSED):
        champion.choose(medicine, "champion/1")
    with pytest.raises(UserError, match=REFUSED):
        tree.prepare(medicine, "HEAD", lambda _: None)
    monkeypatch.chdir(medicine)
    for dry_run in (False, True):
        with pytest.raises(UserError, match=REFUSED):
            retrain(SimpleNamespace(obj=None), dry_run=dry_run)  # type: ignore[arg-type]
    new: Any = SimpleNamespace(champion=first, promoted=True)
    with pytest.raises(UserError, match=REFUSED):  # the other one was first while this one trained
        decision.record(medicine, tree.Tree(repository, medicine, "", None), new, ended=None, known=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["working tree", "HEAD"])
def test_a_project_is_there_if_either_has_its_parameters(repository: Path, where: str) -> None:
    crown(repository / "law", "of_law")
    if where == "HEAD":
        shutil.rmtree(repository / "law")
    else:
        git("rm", "--quiet", "--cached", "-r", "law", folder=repository)
        git("commit", "--quiet", "-m", "not in git", folder=repository)
    assert champion.read_champions(repository / "medicine") == []


def test_a_renamed_project_keeps_its_champions(repository: Path) -> None:
    """It had none any more without a word, and the next retraining crowned its model without a comparison."""
    first = crown(repository / "law", "of_law")
    git("mv", "law", "statutes", folder=repository)
    git("commit", "--quiet", "-m", "renamed", folder=repository)
    assert champion.read_champions(repository / "statutes") == [first]
    refuse_other_projects(repository / "statutes")


def test_a_champion_of_an_older_version_is_every_projects(repository: Path) -> None:
    record = {"model": "a", "cause": "first", "when": "now"}
    git("tag", "--annotate", "champion/7", "-m", f"champion/7: a\n\n{json.dumps(record)}", folder=repository)
    old = Champion(7, "a", "first", "now", commit=git("rev-parse", "HEAD", folder=repository))
    for name in ("law", "medicine"):
        assert champion.read_champions(repository / name) == [old]
        refuse_other_projects(repository / name)


def test_where_two_projects_meet_nothing_moves(repository: Path) -> None:
    """One project's champion was superseded by the other's, and its records left the branch."""
    git("clone", "--quiet", "--bare", ".", "../remote.git", folder=repository)
    git("clone", "--quiet", "remote.git", "clone", folder=repository.parent)
    git("remote", "add", "origin", "../remote.git", folder=repository)
    law, medicine = repository.parent / "clone/law", repository / "medicine"
    crown(law, "of_law")
    assert machines.push(law) == machines.Met()
    ours = crown(medicine, "of_medicine")
    with pytest.raises(UserError, match=REFUSED):
        machines.fetch(medicine)
    assert machines.push(medicine).problem == f"git remote origin: branch and tags are not pushed: {REFUSED} to a repository of its own"
    assert champion.read_champions(medicine) == [ours]


def test_exposure_does_not_know_champions_of_another_project(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dvc.lock that each had in the other's commit counted as a champion's, under the other's model."""
    crown(repository / "law", "of_law")
    for name, locks, models in (("law", ["working tree", "champion/1"], {"champion/1": "of_law"}), ("medicine", ["working tree"], {})):
        monkeypatch.chdir(repository / name)
        assert (list(exposure.known_locks()), exposure.champions()) == (locks, models)
