"""Progress: occasional lines in a log, one redrawn line on a terminal; rate and ETA by a clock that the test moves."""

import time

import pytest

from tasks.core.stage.progress import LIVE, LIVE_SECONDS, LOG_SECONDS, Progress


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


def test_a_terminal_sees_one_line_redrawn(clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = Progress("encode", None)
    for _ in range(3):
        clock[0] += 1
        progress.advance(2)
    progress.close()
    assert capsys.readouterr().err.split("\r\x1b[K")[1:] == [
        "encode: 2, 2.0/s, 0m01s",
        "encode: 4, 2.0/s, 0m02s",
        "encode: 6, 2.0/s, 0m03s",
        "encode: 6, 2.0/s, 0m03s\n",
    ]


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
