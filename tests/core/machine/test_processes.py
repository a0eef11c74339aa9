"""Work by processes: results keep the order of the work, and a single piece starts no process."""

import os
import signal
from pathlib import Path

import pytest

from tasks.core.errors import WorkersLost
from tasks.core.machine import processes
from tasks.core.machine.processes import available_cores, cores, map_in_order, resumable

FILES = list(map(Path, ["/", "/usr", "/usr/lib", "/no/such/file", "/usr/bin", "/tmp"]))


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_work(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that others compute for returns memory; one that computes keeps it."""
    calls: list[bool] = []
    monkeypatch.setattr("tasks.core.machine.processes.return_memory", lambda: calls.append(True))
    assert list(map_in_order(os.path.exists, iter(FILES), processes)) == [path.exists() for path in FILES]
    assert len(calls) == processes - 1


def test_one_piece_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.core.machine.processes.ProcessPoolExecutor", None)
    assert list(map_in_order(os.path.exists, FILES[:1], 8)) == [True]
    assert list(map_in_order(os.path.exists, [], 8)) == []


def test_a_workers_error_is_raised_in_the_caller() -> None:
    with pytest.raises(FileNotFoundError):
        list(map_in_order(os.stat, FILES, 2))


def test_a_killed_worker_is_a_one_line_error() -> None:
    with pytest.raises(WorkersLost, match=r"a worker was killed by the system, most likely for lack of memory; .* run again") as error:
        list(map_in_order(signal.raise_signal, [signal.SIGKILL] * 9, 2))
    assert "\n" not in str(error.value)


def test_threads_of_the_runtime_bound_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cores() == 8
    for text, expected in (("threads: 3\n", 3), ("threads: 99\n", 8), ("slots: 2\n", 8)):
        (tmp_path / "runtime.yaml").write_text(text)
        assert cores() == expected


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [("max 100000", "max 100000", 8), ("max 100000", "250000 100000", 3), ("50000 100000", "max 100000", 1), ("900000 100000", None, 8)],
)
def test_a_quota_bounds_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str, outer: str | None, expected: int) -> None:
    """In a container with `--cpus 3` on a machine of 64 cores, 64 threads took turns."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(processes, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(processes, "GROUPS", tmp_path / "groups")
    assert available_cores() == 8, "no control groups"
    (tmp_path / "cgroup").write_text("1:cpu:/\n0::/a.slice/b.service\n")
    folder = tmp_path / "groups/a.slice/b.service"
    folder.mkdir(parents=True)
    assert available_cores() == 8, "control groups of version 1"
    (folder / "cpu.max").write_text(f"{inner}\n")
    if outer:
        (folder.parent / "cpu.max").write_text(f"{outer}\n")
    assert available_cores() == expected


def test_few_pieces_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.core.machine.processes.ProcessPoolExecutor", None)
    assert list(map_in_order(os.path.exists, FILES, 8, alone=len(FILES))) == [path.exists() for path in FILES]


def test_pieces_are_made_once_and_damaged_ones_again(tmp_path: Path) -> None:
    writes = list[int]()

    def write(piece: int, path: Path) -> None:
        writes.append(piece)
        path.write_text(f"piece {piece}")

    paths = list(resumable(write, range(5), tmp_path, 1))
    assert [path.read_text() for path in paths] == [f"piece {n}" for n in range(5)]
    paths[1].write_text("piece X")
    paths[3].unlink()
    assert list(resumable(write, range(6), tmp_path, 1))[:5] == paths
    assert writes == [0, 1, 2, 3, 4, 1, 3, 5]
