"""Progress: occasional lines in a log, one redrawn line on a terminal; rate and ETA by a clock that the test moves."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.files import WORKER
from tasks.core.stage.entry import stage
from tasks.core.stage.progress import LIVE, LIVE_SECONDS, LOG_SECONDS, Progress, leave_bars, track


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_occasional_lines_and_a_final_one(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("encode", 100, "rows")
    for _ in range(10):
        clock[0] += LOG_SECONDS / 5
        progress.advance(6, "loss 1")
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "encode: 30/100 rows, 1.0/s, 0m30s, 1m10s left, loss 1",
        "encode: 60/100 rows, 1.0/s, 1m00s, 0m40s left, loss 1",
        "encode: 60/100 rows, 1.0/s, 1m00s, 0m40s left",
    ]


def test_resumed_units_are_shown_but_not_in_the_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("train", 100, "steps")
    progress.skip(80)
    clock[0] += 40
    progress.advance(10)
    assert capsys.readouterr().err == "train: 90/100 steps, 4.0 s each, 0m40s, 0m40s left\n"


@pytest.fixture(autouse=True)
def _leave_bars() -> Iterator[None]:
    """No bar of one test stays for the next."""
    yield
    leave_bars()


def test_a_terminal_sees_a_bar_with_rate_and_eta_redrawn(clock: list[float], paper: Any) -> None:
    terminal = paper("stderr")
    progress = Progress("encode", 8)
    for status in ("2/8, 2.0/s, 0m01s, 0m03s left", "4/8, 2.0/s, 0m02s, 0m02s left"):
        clock[0] += 1
        progress.advance(2)
        text, bar = terminal.shown()[0].split(" ━", 1)
        assert (text, set(bar) <= set("━╸╺")) == (f"encode: {status}", True)
        assert len(terminal.shown()) == 1
    progress.close()
    assert terminal.shown() == ["encode: 4/8, 2.0/s, 0m02s, 0m02s left", ""]


def test_on_a_terminal_work_within_work_has_a_line_of_its_own(clock: list[float], paper: Any) -> None:
    terminal = paper("stderr")
    outer = Progress("train", None)
    clock[0] += 1
    outer.advance()
    for _ in track(range(2), "encode \x1b[31m[b]"):
        clock[0] += 1
    assert terminal.shown()[0] == "encode \\x1b[31m[b]: 2, 1.0/s, 0m02s"
    assert terminal.shown()[1].startswith("train: 1, 1.0/s, 0m01s ━")
    clock[0] += 1
    outer.advance()
    outer.close()
    assert terminal.shown()[1:] == ["train: 2, 2.0 s each, 0m04s", ""]


def test_a_narrow_terminal_cuts_lines(clock: list[float], paper: Any) -> None:
    """Also on a terminal that becomes wider or narrower meanwhile."""
    terminal = paper("stderr")
    progress = Progress("encode", 100, "passages")
    for terminal.columns in (20, 80, 7):
        terminal.seek(terminal.truncate(0))
        clock[0] += 1
        progress.advance()
        [line] = terminal.shown()
        assert line.startswith("encode"[: terminal.columns - 2])
    assert len(line) < 8


@pytest.mark.parametrize("name, value", [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_terminal_of_plain_text_is_told_as_a_log(
    clock: list[float], paper: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    terminal = paper("stderr")
    monkeypatch.setenv(name, value)
    progress = Progress("encode", 10)
    clock[0] += 1
    progress.advance(2)
    progress.close()
    assert terminal.getvalue() == "encode: 2/10, 2.0/s, 0m01s, 0m04s left\n"


@pytest.mark.parametrize("error, status", [(UserError("bad"), 2), (KeyboardInterrupt(), 130)])
def test_below_what_a_stage_has_not_finished_stands_why(clock: list[float], paper: Any, error: BaseException, status: int) -> None:
    terminal = paper("stderr")
    with pytest.raises(SystemExit) as exit_info, stage():
        progress = Progress("encode", 10)
        clock[0] += 1
        progress.advance(2)
        raise error
    assert exit_info.value.code == status
    bar, reason, last = terminal.shown()
    assert bar.startswith("encode: 2/10, 2.0/s, 0m01s, 0m04s left ━")
    assert (reason, last) == ("retemper: bad" if status == 2 else "retemper: interrupted", "")


def test_a_log_costs_no_import_of_rich() -> None:
    script = """
import sys
from flows.process.display import Display, Outcome
from tasks.core.files import WORKER
from tasks.core.stage.progress import track
display = Display()
with display.open(["a"]):
    display.began("a")
    display.ended("a", Outcome("Ran"))
list(track([1], "what"))
print("rich" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.endswith("\nFalse\n")


def test_a_flow_on_a_terminal_gets_transient_lines(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIVE, "1")
    progress = Progress("encode", 10, "rows")
    for _ in range(3):
        clock[0] += LIVE_SECONDS / 2
        progress.advance()
    clock[0] = 100 + LOG_SECONDS
    progress.advance()
    progress.close()
    assert capsys.readouterr().err.split("\n") == [
        "\rencode: 2/10 rows, 4.0/s, 0m00s, 0m02s left",
        "encode: 4/10 rows, 7.5 s each, 0m30s, 0m45s left",
        "encode: 4/10 rows, 7.5 s each, 0m30s, 0m45s left",
        "",
    ]


def test_a_worker_shows_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(WORKER, "1")
    monkeypatch.setenv("RETEMPER_LIVE", "1")
    monkeypatch.setattr("tasks.core.stage.progress.LOG_SECONDS", 0.0)
    progress = Progress("search", 9)
    progress.advance(4)
    progress.close()
    assert capsys.readouterr().err == ""
