"""Which push is a project's first to a remote. What it then sends: tests/flows/storage/test_dvc.py."""

from pathlib import Path

import pytest

from flows.pipeline.stage import Processes
from flows.team import sync
from flows.team.sync import is_pushed, push


def test_the_first_push_sends_earlier_results_from_whichever_tree_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [tmp_path / "project", tmp_path / "project/.retemper/retraining"]
    for tree in trees:
        (tree / ".dvc").mkdir(parents=True)
        (tree / ".dvc/config").write_text("[remote]")
        (tree / "dvc.lock").write_text(tree.name)
    project, retraining = trees
    monkeypatch.chdir(retraining)

    def push_command(remote: str) -> str:
        monkeypatch.setattr(sync, "REMOTE", ["sh", "-c", f"echo $0 $* > {tmp_path}/asked"])
        assert push(Processes(), remote, pytest.fail)
        return (tmp_path / "asked").read_text().strip()

    assert push_command("team") == "push earlier"
    assert is_pushed("team")
    assert push_command("team") == "push"
    monkeypatch.chdir(project)
    assert not is_pushed("team"), "its own dvc.lock is another"
    assert push_command("team") == "push"
    assert is_pushed("team")
    assert push_command("other") == "push earlier"
    (project / ".dvc/config").write_text("[remote] at another place")
    assert push_command("other") == "push earlier"
