"""The user's settings of git do not change what is carried to another tree."""

from pathlib import Path

import pytest

from flows.repository.git import git
from flows.repository.worktree import carry_changes, make_worktree, read_changes


@pytest.mark.parametrize("setting", ["diff.context=0", "diff.interHunkContext=9", "diff.mnemonicPrefix=true", "diff.algorithm=patience"])
def test_an_edit_in_the_middle_of_a_file_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    lines = [f"key{number}: {number}\n" for number in range(20)]
    Path("params.yaml").write_text("".join(lines))
    Path("dvc.yaml").write_text("stages: {}\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    git("config", *setting.split("="))
    text = "".join([*lines[:9], "key9: another\n", *lines[10:15], *lines[16:]])
    Path("params.yaml").write_text(text)
    commit = git("rev-parse", "HEAD")
    tree = make_worktree(tmp_path / "tree", commit)
    carry_changes(read_changes(commit), tree)
    assert (tree / "params.yaml").read_text() == text
