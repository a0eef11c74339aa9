"""Workers of this machine: order, restarts, errors as without workers, and no orphans."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import Invalid, Missing, UserError
from tasks.core.params.runtime import Runtime
from tasks.core.workers import each
from tasks.core.workers.each import Alone, local_count, open_workers, threads_each
from tasks.core.workers.pool import AHEAD, GIVEN, Pool
from tests.piecework import Facts, Work, temporary_name


@contextmanager
def open_pool(count: int, restarts: int = 3) -> Iterator[Pool]:
    with open_workers(Runtime(device="cpu", workers=count, threads=1, restarts=restarts)) as workers:
        assert isinstance(workers, Pool)
        yield workers


def test_results_come_in_order_from_workers_that_load_once(tmp_path: Path) -> None:
    work = Work(tmp_path / "log", seconds=0.01, size=300_000)
    with open_pool(3) as workers:
        items = [(number, b"y" * 300_000) for number in range(20)]  # larger than a pipe, both ways
        assert [value for value, _ in workers.each(work, items)] == [number**2 for number in range(20)]
        assert Counter(work.attempts()) == dict.fromkeys(range(20), 1)
        loads = work.log.with_suffix(".loads").read_text().split()
        assert len(loads) == len(set(loads)) <= 3
        assert str(os.getpid()) not in loads
        assert list(workers.each(work, [])) == []
        assert [value for value, _ in workers.each(Work(tmp_path / "more"), [5])] == [25], "the same workers, another function"


def test_each_attempt_writes_under_a_name_of_its_own(tmp_path: Path) -> None:
    """So a piece is done again while a worker that seems lost still writes it."""
    with open_pool(2) as workers:
        assert len(set(workers.each(temporary_name, [tmp_path / "000003.npy"] * 4))) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["000003.npy"]


def test_pieces_are_taken_as_they_are_needed(tmp_path: Path) -> None:
    numbers: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(100):
            numbers.append(number)
            yield number

    with open_pool(2) as workers:
        results = workers.each(Work(tmp_path / "log"), pieces())
        for turn in range(5):
            assert next(results)[0] == turn**2
            time.sleep(0.1)
            assert len(numbers) <= turn + 2 + AHEAD * 2, "memory is bounded"
        del results  # nobody wants the rest
        assert [value for value, _ in workers.each(Work(tmp_path / "log"), [3])] == [9]


def test_a_dead_workers_pieces_are_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(tmp_path / "log", seconds=0.02, killed=(4, 9))
    with open_pool(2) as workers:
        assert [value for value, _ in workers.each(work, range(16))] == [number**2 for number in range(16)]
    attempts = Counter(work.attempts())
    assert attempts[4] == attempts[9] == 2
    assert sum(attempts.values()) - 16 <= 2 * GIVEN, "no more than what was in flight"
    line = "a worker was killed by signal 9, most likely for lack of memory; its work is done again (1 of 3)\n"
    assert capsys.readouterr().err == 2 * line


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_piece_that_kills_its_workers_is_given_up(restarts: int, tmp_path: Path) -> None:
    work = Work(tmp_path / "log", killed=(3,), always=True)
    with open_pool(2, restarts) as workers, pytest.raises(UserError) as error:
        list(workers.each(work, range(8)))
    assert str(error.value) == (
        f"a worker was killed by signal 9, most likely for lack of memory, and {restarts + 1} of them on the same work (runtime.yaml: "
        f"restarts: {restarts}); close other programs or set fewer workers, and run again"
    )
    assert Counter(work.attempts())[3] == restarts + 1


def test_a_users_error_is_the_one_without_workers(tmp_path: Path) -> None:
    """Whichever fails first, the first in order is raised, with all its parts."""
    work = Work(tmp_path / "log", seconds=0.01, wrong=(5, 6, 11))
    with pytest.raises(Missing) as alone_error:
        list(Alone(Runtime()).each(work, range(12)))
    with open_pool(3) as workers:
        with pytest.raises(Missing) as error:
            list(workers.each(work, range(12)))
        assert error.value.problem == alone_error.value.problem
        assert error.value.problem.where == "file 5"
        with pytest.raises(LookupError, match="no 2") as bug:
            list(workers.each(Work(tmp_path / "log", broken=(2,)), range(4)))
    assert "in a worker:" in bug.value.__notes__[0] and "piecework.py" in bug.value.__notes__[0]


def test_workers_agree_or_are_refused(tmp_path: Path) -> None:
    with open_pool(3) as workers:
        assert workers.agreed(Facts(tmp_path / "same")) == "kind 0"
        assert (tmp_path / "same").read_text() == "xxx", "each was asked"
        with pytest.raises(
            UserError, match=r"^runtime.yaml: workers: found workers that differ \(kind \d+( \| kind \d+){2}\), expected GPUs"
        ):
            workers.agreed(Facts(tmp_path / "others", different=True))


def test_workers_end_with_their_stage(tmp_path: Path) -> None:
    """The stage is killed with SIGKILL: the kernel ends its workers."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    stage = subprocess.Popen([sys.executable, "-m", "tests.piecework", str(tmp_path)], env=environment)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    stage.kill()
    stage.wait()
    wait_until(lambda: not any(is_running(int(file.name)) for file in tmp_path.iterdir()))


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_until(condition: Any) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_one_worker_is_this_process(tmp_path: Path) -> None:
    work = Work(tmp_path / "log")
    with open_workers(Runtime()) as workers:
        assert isinstance(workers, Alone) and workers.alone and workers.runtime == Runtime()
        assert workers.agreed(os.getpid) == os.getpid()
        assert [value for value, _ in workers.each(work, range(3))] == [0, 1, 4]
    assert work.loaded == os.getpid()


def test_one_worker_imports_nothing_of_several() -> None:
    code = "import sys; from tasks.core.workers.each import open_workers; from tasks.core.machine.devices import Runtime\n"
    code += "with open_workers(Runtime()) as w: print(list(w.each(abs, [-1])))\n"
    code += "print([name for name in sys.modules if name.startswith(('ray', 'tasks.core.workers.'))])"
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert process.stdout == "[1]\n['tasks.core.workers.each']\n"


def test_how_many_workers_with_how_many_threads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(each, "available_cores", lambda: 12)
    assert local_count(Runtime(workers=5), []) == 5
    assert local_count(Runtime(workers="all", threads=4), []) == 3
    assert local_count(Runtime(workers="all"), []) == 1, "all cores are one worker's"
    assert local_count(Runtime(workers="all"), ["0", "3"]) == 2
    assert local_count(Runtime(workers=3), ["0", "3", "4", "5"]) == 3
    assert capsys.readouterr().out == ""
    assert local_count(Runtime(workers=8), ["0", "3"]) == 2
    assert capsys.readouterr().out == "runtime.yaml: workers: 8: this stage has 2 GPUs, so it gets 2 workers\n"
    assert threads_each(Runtime(), 12, 5) == 2
    assert threads_each(Runtime(), 2, 5) == 1
    assert threads_each(Runtime(threads=3), 12, 5) == 3


def test_gpus_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "usable_gpus", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert each.gpus_of(Runtime()) == ["0", "1", "2"]
    assert each.gpus_of(Runtime(device="cpu")) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5,7")
    assert each.gpus_of(Runtime(device="cuda")) == ["2", "5", "7"]
    with pytest.raises(Invalid, match=r"^runtime.yaml: device: found cuda:1 with workers: 2, expected auto, cuda, or cpu; each worker has"):
        each.gpus_of(Runtime(device="cuda:1", workers=2))
    monkeypatch.setattr(each, "usable_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    assert each.gpus_of(Runtime()) == ["MIG-a", "MIG-b"], "CUDA shows a process one slice, and each worker can have its own"
    monkeypatch.setattr(each, "usable_gpus", lambda: 0)
    with pytest.raises(Invalid, match=r"^runtime.yaml: device: found cuda, but no GPU, expected a GPU; set device: auto$"):
        each.gpus_of(Runtime(device="cuda", workers=2))
    monkeypatch.setattr(each, "unusable_gpus", lambda: "found 2 GPUs that cannot be used")
    with pytest.raises(UserError, match=r"^runtime.yaml: device cuda: found 2 GPUs that cannot be used$"):
        each.gpus_of(Runtime(device="cuda", workers=2))
    assert each.gpus_of(Runtime(workers=2)) == []
