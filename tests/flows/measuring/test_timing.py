"""The log of times: which attempts count, which dvc.lock entry they belong to, what a kill or a full disk leaves."""

from pathlib import Path
from typing import Any

import pytest

from flows.measuring import environments
from flows.measuring.timing import Clock, Measured, Span, device_name, entry_digest, fold, measured, read
from flows.repository.lock import read_lock
from flows.storage import makings


def began(stage: str, params: str = "p") -> dict[str, Any]:
    return {"began": stage, "at": 0, "params": params}


def ended(stage: str, state: str, seconds: float) -> dict[str, Any]:
    return {"ended": stage, "state": state, "seconds": seconds}


def made(stage: str, seconds: float, digest: str) -> dict[str, Any]:
    return ended(stage, "Ran", seconds) | {"digest": digest}


def test_resumed_attempts_count() -> None:
    stopped_log = [began("t"), ended("t", "Stopped", 4), began("t"), ended("t", "Failed", 2), began("t"), made("t", 3, "d")]
    assert fold(stopped_log) == {"d": Measured(9)}
    remade_log = [*stopped_log, began("t"), made("t", 1, "e")]
    assert fold(remade_log) == {"d": Measured(9), "e": Measured(1)}, "set back, the old time returns"
    killed_log = [began("t"), began("t"), ended("t", "Stopped", 1), began("t"), made("t", 3, "d")]
    assert fold(killed_log) == {"d": Measured(4, at_least=True)}, "the first attempt ended with the flow: its length is unknown"
    other_log = [began("t", "old"), ended("t", "Stopped", 4), began("t", "new"), made("t", 3, "d")]
    assert fold(other_log) == {"d": Measured(3)}, "other parameters: nothing was resumed"
    assert fold([began("t", "old"), began("t", "new"), made("t", 3, "d")]) == {"d": Measured(3)}
    assert fold([began("t"), ended("t", "Cached", 1)]) == {}
    assert fold([began("t"), ended("t", "Ran", 1)]) == {}, "dvc.lock could not be read: it is not known what was made"


def test_the_log_of_an_earlier_version_is_read() -> None:
    """It named what was made in a separate line."""
    assert fold([began("t"), ended("t", "Ran", 3), {"made": "t", "digest": "d"}]) == {"d": Measured(3)}


def write_lock(digest: str) -> Any:
    Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n  train@a:\n    cmd: x\n    outs:\n    - path: data/a\n      md5: '{digest}'\n")
    return read_lock()


def test_a_time_belongs_to_what_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And to nothing that dvc.lock names later, for example after a stopped run and a git pull."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    clock = Clock(cache=tmp_path / "cache")
    clock.provenance = {"by": "Ann", "commit": "c1"}
    clock.began("train@a")
    ours = write_lock("1")
    clock.ended(Span("train@a", 10, 11, 14.5, "0", "Ran"), {"threads": 1}, {"seconds": 2.0})
    clock.began("train@b")
    clock.ended(Span("train@b", 10, 11, 14.5, "0", "Stopped"))
    assert measured(ours) == {"train@a": Measured(3.5)}
    theirs = write_lock("2")
    Clock(cache=tmp_path / "cache").ended(Span("prepare", 20, 20, 20, "", "Cached"))
    assert measured(theirs) == {}
    assert environments.of_artifacts(theirs, cache=tmp_path / "cache") == {}
    assert environments.of_artifacts(ours)["train@a"] == {"threads": 1}
    digest = entry_digest(ours["train@a"])
    records = makings.read(tmp_path / "cache", [digest, entry_digest(theirs["train@a"])])
    expected = {"stage": "train@a", "by": "Ann", "commit": "c1", "at": 14.5, "seconds": 3.5, "at_least": False, "bytes": 0}
    expected |= {"round": dict.fromkeys(("steps", "epochs", "batch_queries"))}
    assert records == {digest: expected | {"environment": {"threads": 1}, "cost": {"seconds": 2.0}}}
    assert entry_digest({"a": 1, "b": 2}) == entry_digest({"b": 2, "a": 1})


def test_a_truncated_dvc_lock_costs_the_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = write_lock("1")
    content = Path("dvc.lock").read_text()
    for text in (content[: content.index("outs") + 2], "schema: '2.0'\n", ""):
        Path("dvc.lock").write_text(text)
        Clock(cache=tmp_path).ended(Span("train@a", 10, 11, 14.5, "0", "Ran"))
    Path("dvc.lock").unlink()
    Clock(cache=tmp_path).ended(Span("train@a", 10, 11, 14.5, "0", "Ran"))
    assert measured(lock) == {}
    assert not (tmp_path / makings.FOLDER).exists()


def test_a_torn_log_and_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "times.jsonl"
    log.write_text('{"ended": "t", "state": "Ran", "seconds": 2, "digest": "d"}\n{"began": "u", "at')
    clock = Clock(log)
    clock.began("v")
    assert fold(read(log)) == {"d": Measured(2)}
    assert len(read(log)) == 2, "the truncated line is skipped, what follows it is not"
    (tmp_path / "file").write_text("")
    Clock(tmp_path / "file" / "times.jsonl").began("t")
    assert read(tmp_path / "nowhere") == []


def test_devices_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_name({"CUDA_VISIBLE_DEVICES": "3"}, "device") == "3"
    assert device_name({}, "device") == "0"
    assert device_name({"CUDA_VISIBLE_DEVICES": "3"}, None) == ""
    assert device_name({"CUDA_VISIBLE_DEVICES": ""}, "device") == "", "on a Ray cluster"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    assert device_name({}, "device") == "5,6"
    assert device_name({"CUDA_VISIBLE_DEVICES": ""}, "device") == ""
    for hidden in ("-1", "NoDevFiles", "-1,2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert device_name({}, "device") == "0", "CUDA finds no GPU, so the stage runs on the CPU"
