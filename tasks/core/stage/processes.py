"""Distribute work among processes; results keep the order of the work, so the number of processes changes nothing."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from tasks.core.stage.entry import PR_SET_PDEATHSIG
from tasks.core.stage.errors import UserError

AHEAD = 3  # pieces of work in flight per process; this bounds memory
Work = TypeVar("Work")
Result = TypeVar("Result")


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(function: Callable[[Work], Result], work: Iterable[Work], processes: int) -> Iterator[Result]:
    """`function` of each piece of `work`, in order, computed by `processes` processes; a single piece starts none.

    `function`, pieces, and results pass between processes, so `function` must be at module level (or a partial of such a function).
    UserError if a process is killed.
    """
    rest = iter(work)
    first = list(islice(rest, 2))
    if processes == 1 or len(first) < 2:
        yield from map(function, first)
        yield from map(function, rest)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=tie, initargs=(os.getpid(),)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for piece in (part for source in (first, rest) for part in source):
                waiting.append(pool.submit(function, piece))
                if len(waiting) >= AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                f"a worker was killed by the system, most likely for lack of memory; close other programs, or use fewer than {processes} "
                "cores (taskset -c 0 retemper run), and run again"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def tie(parent: int) -> None:
    """Make this process, a worker, end with its stage, even if the stage is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
