"""What several machines have in common: a bare repository, two clones, no DVC."""

import shutil
from pathlib import Path

import pytest

from flows import champion, retraining_tree
from tasks.core.errors import UserError


def test_machines_have_one_lineage(tmp_path: Path) -> None:
    """Two clones of a bare repository: what one crowns the other has, what both did is one line."""
    git = retraining_tree.git
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    for name in ("one", "two"):
        git(tmp_path, "clone", "--quiet", "remote.git", name)
    one, two = tmp_path / "one", tmp_path / "two"

    def crown(project: Path, number: int, after: str | None = None) -> str:
        empty = git(project, "hash-object", "-w", "-t", "tree", "--stdin")
        new = git(project, "commit-tree", empty, *(("-p", after) if after else ()), text=f"{project.name} {number}")
        champion.crown(project, champion.Champion(number, "a", "set", "now", commit=new), (new, after))
        return new

    assert retraining_tree.fetch(one) is None
    first = crown(one, 1)
    assert retraining_tree.push(one) is None
    assert retraining_tree.fetch(two) is None
    assert retraining_tree.resolve(two, retraining_tree.BRANCH) == first
    assert [entry.number for entry in champion.read_champions(two)] == [1]
    crown(two, 2, first)
    assert retraining_tree.fetch(two) is None, "ahead"
    crown(one, 2, first)
    assert retraining_tree.push(two) is None
    with pytest.raises(UserError, match="another here than on git remote origin, for two machines") as caught:
        retraining_tree.fetch(one)
    assert "\n" not in str(caught.value)
    assert (retraining_tree.push(one) or "").startswith("git remote origin: branch and tags are not pushed")
    for name in (retraining_tree.BRANCH, f"{retraining_tree.TAGS}2"):
        git(one, "update-ref", "-d", name)
    assert retraining_tree.fetch(one) is None
    assert champion.read_champions(one) == champion.read_champions(two)
    other = git(one, "commit-tree", git(one, "hash-object", "-w", "-t", "tree", "--stdin"), text="unrelated")
    assert not retraining_tree._is_ancestor(one, other, first)
    shutil.move(tmp_path / "remote.git", tmp_path / "away.git")
    assert (retraining_tree.fetch(one) or "").startswith("git remote origin: not asked for the champions of other machines")
