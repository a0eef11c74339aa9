"""The log of times: which attempts count, which dvc.lock entry they belong to, what a kill or a full disk leaves."""

from pathlib import Path
from typing import Any

import pytest

from flows.results.timing import Clock, Measured, Span, device_name, entry_digest, fold, measured, read

LOCK = {"train@a": {"cmd": "x", "outs": [{"path": "data/a", "md5": "1"}]}, "prepare": {"cmd": "y"}}


def began(stage: str, params: str = "p") -> dict[str, Any]:
    return {"began": stage, "at": 0, "params": params}


def ended(stage: str, state: str, seconds: float) -> dict[str, Any]:
    return {"ended": stage, "state": state, "seconds": seconds}


def test_resumed_attempts_count() -> None:
    stopped = [began("t"), ended("t", "Stopped", 4), began("t"), ended("t", "Failed", 2), began("t"), ended("t", "Ran", 3)]
    assert fold(stopped) == ({}, {"t": Measured(9)})
    assert fold([*stopped, {"made": "t", "digest": "d"}]) == ({"d": Measured(9)}, {})
    again = [*stopped, {"made": "t", "digest": "d"}, began("t"), ended("t", "Ran", 1), {"made": "t", "digest": "e"}]
    assert fold(again)[0] == {"d": Measured(9), "e": Measured(1)}, "set back, the old time returns"
    killed = [began("t"), began("t"), ended("t", "Stopped", 1), began("t"), ended("t", "Ran", 3)]
    assert fold(killed)[1] == {"t": Measured(4, at_least=True)}, "the first attempt ended with the flow: its length is unknown"
    other = [began("t", "old"), ended("t", "Stopped", 4), began("t", "new"), ended("t", "Ran", 3)]
    assert fold(other)[1] == {"t": Measured(3)}, "other parameters: nothing was resumed"
    assert fold([began("t", "old"), began("t", "new"), ended("t", "Ran", 3)])[1] == {"t": Measured(3)}
    assert fold([began("t"), ended("t", "Cached", 1)]) == ({}, {})


def test_a_time_belongs_to_what_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.results.timing.read_lock", lambda: LOCK)
    clock = Clock()
    clock.began("train@a")
    clock.ended(Span("train@a", 10, 11, 14.5, "0", "Ran"))
    assert measured(LOCK) == {}, "not before dvc.lock has it"
    clock.keep(tmp_path / "cache")
    assert measured(LOCK) == {"train@a": Measured(3.5)}
    lines = len(read())
    clock.keep(tmp_path / "cache")
    assert len(read()) == lines
    assert measured({"train@a": LOCK["train@a"] | {"params": 1}}) == {}, "made from other inputs: not measured"
    assert entry_digest({"a": 1, "b": 2}) == entry_digest({"b": 2, "a": 1})


def test_times_keep_waiting_where_dvc_lock_was_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run keeps the times of a killed one before it restores dvc.lock: it must get that far."""
    monkeypatch.chdir(tmp_path)
    whole = "schema: '2.0'\nstages:\n  train@a:\n    cmd: x\n    outs:\n    - path: data/a\n      md5: '1'\n"
    clock = Clock()
    clock.ended(Span("train@a", 10, 11, 14.5, "0", "Ran"))
    Path("dvc.lock").write_text(whole[: whole.index("outs") + 2])
    clock.keep(tmp_path / "cache")
    assert fold(read())[1] == {"train@a": Measured(3.5)}
    Path("dvc.lock").write_text(whole)
    clock.keep(tmp_path / "cache")
    assert measured(LOCK) == {"train@a": Measured(3.5)}


def test_a_torn_log_and_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "times.jsonl"
    log.write_text('{"ended": "t", "state": "Ran", "seconds": 2}\n{"began": "u", "at')
    clock = Clock(log)
    clock.began("v")
    assert fold(read(log))[1] == {"t": Measured(2)}
    assert len(read(log)) == 2, "the truncated line is skipped, what follows it is not"
    (tmp_path / "file").write_text("")
    Clock(tmp_path / "file" / "times.jsonl").began("t")
    assert read(tmp_path / "nowhere") == []


def test_devices_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_name({"CUDA_VISIBLE_DEVICES": "3"}, "device") == "3"
    assert device_name({}, "device") == "0"
    assert device_name({"CUDA_VISIBLE_DEVICES": "3"}, None) == ""
