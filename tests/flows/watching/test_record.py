"""The file in which a run says what it is doing."""

import json
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flows.process.display import Outcome
from flows.process.processes import TYPED
from flows.watching import record
from flows.watching.record import RECORD, Recorder, RunNow, StageNow, read, recording
from tasks.core.errors import Problem

RUN = RunNow("retemper run", 7, 1.0, "host", 100.0, (StageNow("prepare", estimate=3.0), StageNow("train@a"), StageNow("report")))

WRONG = json.dumps(asdict(RUN) | {"command": ["retemper"]})


def states(path: Path) -> dict[str, str]:
    run = read(path)
    assert run is not None
    return {stage.name: stage.state for stage in run.stages}


def wait_for(path: Path, **expected: Any) -> None:
    """Wait until train@a is recorded with these values."""
    deadline = time.monotonic() + 60
    while any(getattr(run.stages[1], name) != value for run in [read(path)] if run for name, value in expected.items()):
        assert time.monotonic() < deadline, expected
        time.sleep(0.01)


def test_stages_begin_progress_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setattr(record, "SECONDS", 0.05)
    recorder = Recorder(RUN, path)
    assert read(path) == RUN
    recorder.began("prepare")
    recorder.ended("prepare", Outcome("Cached"))
    recorder.began("train@a")
    wait_for(path, state="running")
    assert states(path) == {"prepare": "cached", "train@a": "running", "report": "waiting"}
    for step in range(3):
        recorder.said("train@a", f"{step}/3 steps")
    wait_for(path, said="2/3 steps")
    recorder.ended("train@a", Outcome("Failed", 1.0, 2, Problem("invalid", "no such file", 2)))
    wait_for(path, state="failed", problem="no such file")
    run = read(path)
    assert run is not None and run.ended is None
    assert (run.stages[1].began or 0) <= (run.stages[1].ended or 0)
    recorder.finish()
    assert states(path) == {"prepare": "cached", "train@a": "failed", "report": "skipped"}


def test_the_file_is_written_once_for_many_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setattr(record, "SECONDS", 3600.0)
    recorder = Recorder(RUN, path)
    recorder.began("train@a")
    recorder.said("train@a", "1/3 steps")
    assert read(path) == RUN, "not at once: a run of a thousand stages from the cache would write a thousand times"
    recorder.finish()
    run = read(path)
    assert run is not None and (run.stages[1].state, run.stages[1].said) == ("stopped", "1/3 steps"), "the end is written at once"


def test_a_run_that_ends_early_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt), recording(RUN.stages, path) as recorder:
        recorder.began("prepare")
        raise KeyboardInterrupt(2)
    run = read(path)
    assert run is not None and run.problem == "stopped" and run.ended and run.process == os.getpid()
    assert states(path) == {"prepare": "stopped", "train@a": "skipped", "report": "skipped"}
    with pytest.raises(OSError), recording(RUN.stages, path):
        raise OSError("no such disk")
    run = read(path)
    assert run is not None and run.problem == "no such disk"


def test_it_says_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TYPED, "retemper bisect")
    with recording((), tmp_path / "run.json"):
        run = read(tmp_path / "run.json")
    assert run is not None and run.command == "retemper bisect"


def test_a_run_that_changes_its_folder_is_recorded_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tree", "project"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    recorder = Recorder(RUN)
    monkeypatch.chdir(tmp_path / "project")
    recorder.began("prepare")
    recorder.finish()
    assert states(tmp_path / "tree" / RECORD)["prepare"] == "stopped" and not (tmp_path / "project" / RECORD).exists()


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    recorder = Recorder(RUN, tmp_path / "run.json")
    recorder.said("prepare", "x" * 10**6)
    recorder.finish()
    assert "xxx" in (tmp_path / "run.json").read_text()
    assert (tmp_path / "run.json").stat().st_size < 5000


def test_a_disk_that_takes_nothing_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / ".retemper").write_text("a file in the folder's place")
    with recording(RUN.stages, tmp_path / RECORD) as recorder:
        recorder.began("prepare")
    assert read(tmp_path / RECORD) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"stages": 3}', '{"stages": [{}]}', json.dumps({"stages": []}), WRONG])
def test_another_version_or_half_a_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert read(tmp_path / "run.json") is None


@pytest.mark.parametrize(
    "fields",
    [{"began": float("nan")}, {"ended": 1e300}, {"born": -1.0}, {"process": -1}, {"stages": [{"name": "a", "began": float("inf")}]}],
)
def test_what_no_run_has_written_is_none(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Invalid times and process ids once made the page fail."""
    (tmp_path / "run.json").write_text(json.dumps(asdict(RUN) | fields))
    assert read(tmp_path / "run.json") is None


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    """Typed in a command, they once made the record unreadable."""
    Recorder(replace(RUN, command="retemper evaluate --data m\udcfcll"), tmp_path / "run.json")
    run = read(tmp_path / "run.json")
    assert run and run.command == "retemper evaluate --data m?ll"


def test_what_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    """A thread of a finished run may still report after another run has begun recording there."""
    with recording(RUN.stages, tmp_path / "run.json") as recorder:
        pass
    (tmp_path / "run.json").unlink()
    recorder.said("train@a", "late")
    recorder._catch_up()  # what its timer calls
    assert not (tmp_path / "run.json").exists()


def test_many_threads_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    stages = tuple(StageNow(f"stage{n}") for n in range(8))
    recorder = Recorder(RunNow("retemper run", 7, 1.0, "host", 100.0, stages), path)

    def record_stage(name: str) -> None:
        for _ in range(20):
            recorder.began(name)
            recorder.said(name, "1/2 steps")
            assert read(path) is not None
            recorder.ended(name, Outcome("Ran"))

    threads = [threading.Thread(target=record_stage, args=(stage.name,)) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.finish()
    assert set(states(path).values()) == {"ran"}
