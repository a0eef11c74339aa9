"""What a stage ran with is kept beside its time, belongs to what it made, and explains a digest that differs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.measuring import environments, timing
from flows.reproducing.reproduce import compare, explain
from tasks.core.machine import devices
from tasks.core.machine.devices import choose_device
from tasks.core.params.runtime import Runtime
from tasks.core.stage.entry import RECORD, SECONDS, record_arithmetic, record_cost


def entry(digest: str) -> dict[str, Any]:
    return {"train@a": {"cmd": "train", "outs": [{"path": "data/encoders/a", "md5": digest}]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_stage(project: Path, monkeypatch: pytest.MonkeyPatch, *, threads: int, digest: str) -> None:
    """Run a stage of the flow in `project` with this many threads."""
    monkeypatch.chdir(project)
    for name, value in environments.begin("train@a").items():
        monkeypatch.setenv(name, value)
    before = torch.get_num_threads()
    try:
        choose_device(Runtime(device="cpu", threads=threads))
        choose_device(Runtime(device="cpu", threads=7))  # a worker's, later: not what the stage is recorded to have run with
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(False)
    clock = timing.Clock()
    clock.began("train@a")
    record_cost(seconds=1.5)
    record_cost(peak_mib=300, search_p50_ms=0.25)
    outs = f"    outs:\n    - path: data/encoders/a\n      md5: '{digest}'\n"
    Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n  train@a:\n    cmd: train\n{outs}")
    clock.ended(timing.Span("train@a", 0, 0, 1, "0", "Ran"), environments.read_environment("train@a"), environments.cost("train@a"))


def test_other_threads_are_named_where_a_digest_differs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = folder / "clone"
    clone.mkdir()
    run_stage(clone, monkeypatch, threads=2, digest="22")
    run_stage(folder, monkeypatch, threads=1, digest="11")
    expected, actual = entry("11"), entry("22")
    rows = list(compare(expected, actual, folder, other=folder))
    (line,) = explain(expected, actual, rows, project=clone)
    assert line == "train@a: was computed with threads 1, here 2"
    assert not list(explain(expected, expected, list(compare(expected, expected, folder, other=folder)), project=clone)), (
        "equal digests need no words"
    )
    (folder / timing.LOG).unlink()
    (line,) = explain(expected, actual, rows, project=clone)
    assert line.startswith("train@a: there is no record of what it was computed with; other threads, hardware or versions")


def test_environments_belong_to_artifacts_made_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage(folder, monkeypatch, threads=1, digest="11")
    environment = environments.of_artifacts(entry("11"))["train@a"]
    assert environment["threads"] == 1 and environment["device"] == "cpu" and "torch" in environment
    assert {"instructions", "bf16", "processor", "python"} <= set(environment)
    assert environments.of_artifacts(entry("33")) == {}, "made elsewhere"
    assert timing.measured(entry("11"))["train@a"].seconds == 1, "times are read as before"
    monkeypatch.delenv(RECORD)
    assert not os.environ.get(RECORD)
    devices.record_hardware(torch.device("cpu"))
    assert [path.name for path in (folder / ".retemper").rglob("*.json")] == ["train@a.json"]
    assert json.loads((folder / environments.FOLDER / "train@a.json").read_text())["threads"] == 1


def test_costs_belong_to_artifacts_made_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage(folder, monkeypatch, threads=1, digest="11")
    costs = environments.of_artifacts(entry("11"), field="cost")
    assert costs == {"train@a": {"seconds": 1.5, "peak_mib": 300, "search_p50_ms": 0.25}}
    assert environments.of_artifacts(entry("33"), field="cost") == {}
    assert environments.cost("never") == {}
    (folder / environments.FOLDER / "train@a.seconds").write_text("1.5\n")
    assert environments.cost("train@a") == {}, "as an older version wrote it"
    monkeypatch.delenv(SECONDS)
    record_cost(seconds=2)
    assert (folder / environments.FOLDER / "train@a.seconds").read_text() == "1.5\n", "only where the flow asks"


def test_stages_with_the_same_difference_share_a_line() -> None:
    old, new = {"threads": 1, "torch": "2.1"}, {"threads": 2, "torch": "2.2"}
    lines = list(environments.differences(["a", "b", "c"], {"a": old, "b": old, "c": new}, dict.fromkeys("abc", new)))
    assert lines == [
        "a, b: was computed with threads 1, here 2; torch 2.1, here 2.2",
        "c: was computed with the same threads, hardware and versions",
    ]


def test_the_arithmetic_is_what_was_asked_of_hardware_that_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data").mkdir()
    sections = {"rounds": {"a": {"precision": "fp32"}, "b": {}}, "encode": {}, "retrieve": None, "mix": {"m": {}}}
    (folder / "data/params.json").write_text(json.dumps(sections))
    precisions = {
        stage: environments.precision(stage) for stage in ("train@a", "train@b", "encode@a", "retrieve_adore@t", "mix@m", "report")
    }
    assert precisions == {"train@a": "fp32", "train@b": "bf16", "encode@a": "bf16", "retrieve_adore@t": "bf16", "mix@m": "", "report": ""}
    for native, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(devices, "compute_dtype", lambda *_, native=native: torch.bfloat16 if native else torch.float32)
        for stage, arithmetic in (("train@a", "fp32"), ("train@b", expected)):
            monkeypatch.setenv(RECORD, environments.begin(stage)[RECORD])
            devices.record_hardware(torch.device("cpu"))
            assert environments.read_environment(stage)["arithmetic"] == arithmetic
            record_arithmetic("int8 in some library")
            assert environments.read_environment(stage)["arithmetic"] == "int8 in some library", "as the stage says"
    assert "arithmetic" not in environments.read_environment("report")
