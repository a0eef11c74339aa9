"""Work by processes: results keep the order of the work, and a single piece starts no process."""

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


def test_a_workers_error_is_raised_in_the_caller() -> None:
    with pytest.raises(FileNotFoundError):
        list(in_order(os.stat, FILES, 2))


def test_a_killed_worker_is_a_one_line_error() -> None:
    with pytest.raises(UserError, match=r"a worker was killed by the system, most likely for lack of memory; .* run again") as refusal:
        list(in_order(signal.raise_signal, [signal.SIGKILL] * 9, 2))
    assert "\n" not in str(refusal.value)
