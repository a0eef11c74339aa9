"""Which stages a clone may take from the remote, and what it remembers to have sent. The clones themselves: test_pipeline."""

from pathlib import Path

import pytest

from flows import sharing
from flows.sharing import is_pushed, push, restorable
from flows.stages import Processes


def test_stages_whose_files_are_merely_absent_can_be_restored() -> None:
    status = {
        "cloned": [{"changed deps": {"data/corpus": "deleted"}}, {"changed outs": {"data/tokens": "deleted"}}],
        "collected": [{"changed outs": {"data/tokens": "not in cache"}}],
        "edited": [{"changed deps": {"params.yaml": {"text": "modified"}}}, {"changed outs": {"data/tokens": "deleted"}}],
        "recoded": [{"changed deps": {"tasks/bm25": "modified"}}],
        "new": [{"changed deps": {"data/corpus": "new"}}, {"changed outs": {"data/bm25": "deleted"}}, "changed checksum"],
    }
    assert restorable(status) == ["cloned", "collected"]
    assert restorable({}) == []


def test_what_was_pushed_is_remembered_until_something_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[remote]")
    Path("dvc.lock").write_text("one")
    warnings: list[str] = []
    assert not is_pushed("team")
    monkeypatch.setattr(sharing, "DVC", ["sh", "-c", "echo 'ERROR: no route to host'; exit 3"])
    assert not push(Processes(), "team", warnings.append)
    assert not is_pushed("team")
    assert warnings == ["remote team: not everything was pushed, the next run tries again: no route to host (status 3)"]
    monkeypatch.setattr(sharing, "DVC", ["true"])
    assert push(Processes(), "team", warnings.append)
    assert is_pushed("team")
    assert not is_pushed("other")
    Path("dvc.lock").write_text("two")
    assert not is_pushed("team")
