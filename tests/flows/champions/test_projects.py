"""Two projects in one repository: tags are the repository's, champions a project's."""

import json
from pathlib import Path

import pytest

from flows.champions import champion, machines
from flows.champions.champion import Champion
from flows.repository.git import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    for name in ("law", "medicine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "params.yaml").write_text("seed: 1\n")
    git("init", "--quiet", folder=folder)
    git("add", ".", folder=folder)
    git("commit", "--quiet", "-m", "two projects", folder=folder)
    return folder


def crown(project: Path, model: str, cause: str = "first") -> Champion:
    new = Champion(champion.next_number(project), model, cause, "now", commit=git("rev-parse", "HEAD", folder=project))
    return champion.crown(project, new)


def test_a_project_has_its_own_champions_under_numbers_of_the_repository(repository: Path) -> None:
    """The second one took the first one's model for its champion, compared with it, and served it."""
    law, medicine = repository / "law", repository / "medicine"
    first = crown(law, "of_law")
    assert (champion.read_champions(medicine), champion.current(law)) == ([], first)
    second = crown(medicine, "of_medicine")
    assert (first.prefix, second.number, second.prefix) == ("law/", 2, "medicine/")
    assert (champion.read_champions(law), champion.read_champions(medicine)) == ([first], [second])
    git("worktree", "add", "--quiet", "--detach", "../tree", folder=repository)
    assert champion.read_champions(repository.parent / "tree/law") == [first], "as in the retrainings' worktree"
    assert champion.read_champions(repository) == []


def test_a_champion_of_an_older_version_is_every_projects(repository: Path) -> None:
    record = {"model": "a", "cause": "first", "when": "now"}
    git("tag", "--annotate", "champion/7", "-m", f"champion/7: a\n\n{json.dumps(record)}", folder=repository)
    old = Champion(7, "a", "first", "now", commit=git("rev-parse", "HEAD", folder=repository))
    for name in ("law", "medicine"):
        assert champion.read_champions(repository / name) == [old]
    assert champion.next_number(repository / "law") == 8


def test_a_champion_of_the_other_project_is_kept_where_two_machines_meet(repository: Path) -> None:
    """Settling asks for the champions of all projects, since tags clash by number alone."""
    git("clone", "--quiet", "--bare", ".", "../remote.git", folder=repository)
    git("clone", "--quiet", "remote.git", "clone", folder=repository.parent)
    git("remote", "add", "origin", "../remote.git", folder=repository)
    theirs = crown(repository.parent / "clone/law", "of_law")
    assert machines.push(repository.parent / "clone/law") == machines.Met()
    ours = crown(repository / "medicine", "of_medicine", "set")
    assert (theirs.number, ours.number) == (1, 1)
    assert machines.push(repository / "law").problem is None
    assert champion.read_champions(repository / "law") == [theirs]
    assert [(one.number, one.model) for one in champion.read_champions(repository / "medicine")] == [(2, ours.model)]
