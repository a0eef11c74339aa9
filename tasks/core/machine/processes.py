"""Distribute work among processes; results keep the order of the work, so the number of processes changes nothing."""

import ctypes
import math
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tasks.core.errors import WorkersLost
from tasks.core.params.runtime import read_runtime
from tasks.core.stage.entry import PR_SET_PDEATHSIG
from tasks.core.stage.scratch import is_sealed, seal

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
RETURNED = 2**20  # bytes from which on a freed allocation is returned
AHEAD = 3  # pieces of work in flight per process; this bounds memory
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
Work = TypeVar("Work")
Result = TypeVar("Result")


def available_cores() -> int:
    """The CPU cores that the system lets this process use: those it may run on, or fewer by a quota (of a container, or of systemd)."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(number, _quota()))


def _quota() -> float:
    """CPU time per time that the control groups (version 2) of this process allow, those above it included; inf without a limit."""
    with suppress(OSError, StopIteration):
        lines = GROUP.read_text(encoding="utf-8").splitlines()
        name = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        limits = []
        for folder in (GROUPS / name, *(GROUPS / name).parents):
            if folder.is_relative_to(GROUPS) and (folder / "cpu.max").exists():  # "max 100000", or a quota in place of max
                quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
                limits += [] if quota == "max" else [int(quota) / int(period)]
        return min(limits, default=math.inf)
    return math.inf


def cores() -> int:
    """The CPU cores that this process may use: at most `threads` of runtime.yaml."""
    available = available_cores()
    return min(available, read_runtime().threads or available)


def map_in_order(function: Callable[[Work], Result], work: Iterable[Work], processes: int, alone: int = 1) -> Iterator[Result]:
    """Apply `function` to each piece of `work` in `processes` processes; yield the results in order. For up to `alone` pieces, start none.

    `function`, pieces, and results pass between processes, so `function` must be at module level (or a partial of such a function).
    WorkersLost if a process is killed.
    """
    pieces = iter(work)
    first = list(islice(pieces, alone + 1)) if processes > 1 else []
    if len(first) <= alone:
        yield from map(function, first)
        yield from map(function, pieces)
        return
    return_memory()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for piece in (part for source in (first, pieces) for part in source):
                waiting.append(pool.submit(function, piece))
                if len(waiting) >= AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise WorkersLost(
                f"a worker was killed by the system, most likely for lack of memory; close other programs, or use fewer than {processes} "
                "cores (taskset -c 0 retemper run), and run again"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def return_memory() -> None:
    """Make this process's malloc return every freed allocation of 1 MiB or more to the system (glibc).

    By default it reuses freed blocks of up to 32 MiB in parts, which leaves gaps that no later block fits, so a process that passes on the
    results of others grows. Fresh pages take time, so a process that computes keeps the default, or calls `devices.keep_memory`.
    """
    limit_malloc(mapped=RETURNED, kept=4 * RETURNED)


def limit_malloc(mapped: int, kept: int) -> bool:
    """Make this process's malloc map allocations of `mapped` bytes or more, and keep up to `kept` free bytes of others. Only glibc can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and bool(mallopt(M_TRIM_THRESHOLD, kept) and mallopt(M_MMAP_THRESHOLD, mapped))


def resumable(function: Callable[[Work, Path], None], work: Iterable[Work], folder: Path, processes: int) -> Iterator[Path]:
    """Yield the result file of each piece of `work`, in order; `function` writes one. Intact files in `folder` are reused.

    `folder` (tasks.core.stage.scratch) must belong to this work alone: a file is identified by the number of its piece.
    """
    folder.mkdir(parents=True, exist_ok=True)
    yield from map_in_order(partial(_make, function), ((folder / f"{number:06}", piece) for number, piece in enumerate(work)), processes)


def _make(function: Callable[[Work, Path], None], place: tuple[Path, Work]) -> Path:
    path, piece = place
    if not is_sealed(path):
        function(piece, path)
        seal(path)
    return path


def _begin(parent: int) -> None:
    """Set this process up as a worker that ends with its stage. Its tokenizer has one thread: the other cores have workers."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Make this process, a worker, end with its stage, even if the stage is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
