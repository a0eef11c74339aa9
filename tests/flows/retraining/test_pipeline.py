"""The pipeline as a retraining runs it."""

from pathlib import Path

import pytest

from flows.process import locks
from flows.retraining import pipeline
from tasks.core.errors import UserError


def test_a_worktree_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locks.hold_run_lock(tmp_path / "run.lock")
    lock.__enter__()
    monkeypatch.setattr(pipeline.time, "sleep", lambda _: lock.__exit__(None, None, None))
    pipeline.wait_for(tmp_path / "run.lock")
    with locks.hold_run_lock(tmp_path / "run.lock"):
        monkeypatch.setattr(pipeline, "WAIT_SECONDS", -1)
        with pytest.raises(UserError, match="another run is in progress"):
            pipeline.wait_for(tmp_path / "run.lock")
