"""Work by processes: the order of the work, and nothing for a single piece."""

import os
import signal
from pathlib import Path

import pytest

from tasks.core.stage.errors import UserError
from tasks.core.stage.processes import in_order

FILES = list(map(Path, ["/", "/usr", "/usr/lib", "/no/such/file", "/usr/bin", "/tmp"]))


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_work(processes: int) -> None:
    assert list(in_order(os.path.exists, iter(FILES), processes)) == [path.exists() for path in FILES]


def test_one_piece_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.core.stage.processes.ProcessPoolExecutor", None)
    assert list(in_order(os.path.exists, FILES[:1], 8)) == [True]
    assert list(in_order(os.path.exists, [], 8)) == []


def test_an_error_of_a_worker_is_the_callers() -> None:
    with pytest.raises(FileNotFoundError):
        list(in_order(os.stat, FILES, 2))


def test_a_worker_that_the_system_ended_is_told_in_a_line() -> None:
    with pytest.raises(UserError, match=r"a worker was ended by the system, most likely for memory; .* run again") as refusal:
        list(in_order(signal.raise_signal, [signal.SIGKILL] * 9, 2))
    assert "\n" not in str(refusal.value)
