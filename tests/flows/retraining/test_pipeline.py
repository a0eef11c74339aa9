"""The pipeline as a retraining runs it."""

from pathlib import Path

import pytest

from flows.process import locks
from flows.process.display import Display
from flows.process.processes import Processes
from flows.retraining import pipeline
from tasks.core.errors import UserError


def test_a_worktree_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[list[str]] = []

    def run(targets: list[str], **_: object) -> None:
        with locks.hold_run_lock():  # as the run does
            ran.append(targets)

    monkeypatch.setattr(pipeline.run, "run", run)
    lock = locks.hold_run_lock()
    lock.__enter__()
    monkeypatch.setattr(locks.time, "sleep", lambda _: lock.__exit__(None, None, None))
    pipeline.run_pipeline(lambda: None, Processes(), Display(), targets=["report"])
    assert ran == [["report"]]
    with locks.hold_run_lock():
        monkeypatch.setattr(pipeline, "WAIT_SECONDS", -1)
        with pytest.raises(UserError, match=r"run\.lock: another process has held it for -1 s; find it \(fuser .*\) and stop it"):
            pipeline.run_pipeline(lambda: None, Processes(), Display())
    assert len(ran) == 1
