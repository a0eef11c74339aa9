"""What several machines have in common: a bare repository, two clones, no DVC."""

import shutil
from pathlib import Path

import pytest

from flows.champions import champion, tree
from flows.repository.git import git
from tasks.core.stage.errors import UserError


def test_machines_have_one_lineage(tmp_path: Path) -> None:
    """Two clones of a bare repository: what one crowns the other has, what both did is one line."""
    git("init", "--quiet", "--bare", "remote.git", folder=tmp_path)
    for name in ("one", "two"):
        git("clone", "--quiet", "remote.git", name, folder=tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"

    def crown(project: Path, number: int, after: str | None = None) -> str:
        empty = git("hash-object", "-w", "-t", "tree", "--stdin", folder=project)
        new = git("commit-tree", empty, *(("-p", after) if after else ()), text=f"{project.name} {number}", folder=project)
        champion.crown(project, champion.Champion(number, "a", "set", "now", commit=new), (new, after))
        return new

    assert tree.fetch(one) is None
    first = crown(one, 1)
    assert tree.push(one) is None
    assert tree.fetch(two) is None
    assert tree.resolve(two, tree.BRANCH) == first
    assert [entry.number for entry in champion.read_champions(two)] == [1]
    crown(two, 2, first)
    assert tree.fetch(two) is None, "ahead"
    crown(one, 2, first)
    assert tree.push(two) is None
    with pytest.raises(UserError, match="another here than on git remote origin, for two machines") as caught:
        tree.fetch(one)
    assert "\n" not in str(caught.value)
    assert (tree.push(one) or "").startswith("git remote origin: branch and tags are not pushed")
    for name in (tree.BRANCH, f"{tree.TAGS}2"):
        git("update-ref", "-d", name, folder=one)
    assert tree.fetch(one) is None
    assert champion.read_champions(one) == champion.read_champions(two)
    other = git("commit-tree", git("hash-object", "-w", "-t", "tree", "--stdin", folder=one), text="unrelated", folder=one)
    assert not tree._is_ancestor(one, other, first)
    shutil.move(tmp_path / "remote.git", tmp_path / "away.git")
    assert (tree.fetch(one) or "").startswith("git remote origin: not asked for the champions of other machines")


def test_names_that_stand_in_the_way_are_refused_before_anything_runs(tmp_path: Path) -> None:
    git("init", "--quiet", folder=tmp_path)
    hook = tmp_path / ".git/hooks/post-checkout"  # as `dvc install` makes it; git checkout then ends with its status
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    git("commit", "--quiet", "--allow-empty", "-m", "first", folder=tmp_path)
    git("checkout", "--quiet", "-b", "retemper", folder=tmp_path)
    with pytest.raises(UserError, match=r"refs/heads/retemper: .* git branch -m retemper NEW"):
        tree.prepare(tmp_path, "HEAD", print)
    git("branch", "-m", "retemper", "NEW", folder=tmp_path)
    git("tag", "champion", folder=tmp_path)
    with pytest.raises(UserError, match=r"refs/tags/champion: .* git tag NEW champion && git tag -d champion"):
        tree.prepare(tmp_path, "HEAD", print)
    git("tag", "-d", "champion", folder=tmp_path)
    git("update-ref", tree.BRANCH, "HEAD", folder=tmp_path)
    git("update-ref", f"{tree.TAGS}1", "HEAD", folder=tmp_path)
    tree.refuse_taken_names(tmp_path)


def test_locks_of_a_dead_git_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "equip", lambda *_: None)  # DVC's, of which there is none here
    git("init", "--quiet", folder=tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "first", folder=tmp_path)
    locks = [tmp_path / ".git" / name for name in (f"{tree.BRANCH}.lock", f"{tree.TAGS}7.lock")]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    tree.prepare(tmp_path, "HEAD", print)
    assert not any(lock.exists() for lock in locks)
