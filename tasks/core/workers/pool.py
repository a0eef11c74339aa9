"""Workers of engine local: processes of this machine, one GPU or a share of the CPU threads each.

They are spawned, not forked: torch and CUDA survive no fork. Each has a pipe to the stage. When a worker dies, the pipe ends, and
another one does its pieces again; when the stage dies, however that happens, the kernel ends its workers.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tasks.core.errors import UserError, WorkersLost
from tasks.core.machine.processes import end_with_parent
from tasks.core.params.runtime import Runtime
from tasks.core.workers.attempts import AHEAD, Called, Run, attempt, become_worker

Piece = TypeVar("Piece")
Result = TypeVar("Result")
GIVEN = 2  # pieces that a worker has at a time, so that it does not wait for the stage


@dataclass
class Worker:
    """A process, the pipe to it, and the pieces that it has, with their numbers; the first is the one that it computes."""

    process: BaseProcess
    pipe: Connection
    pieces: deque[tuple[int, Any]] = field(default_factory=deque)

    def give(self, number: int, piece: Any) -> None:
        """Give it one more piece. It may be dead already, which shows when its results are awaited."""
        self.pieces.append((number, piece))
        with suppress(OSError):
            self.pipe.send((number, piece))

    def end(self) -> None:
        """Kill it. This is safe: a file gets its name only when it is complete."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Pool:
    """One worker for each of `environments`, which tell it its GPU; `runtime`: the settings of each."""

    alone = False

    def __init__(self, runtime: Runtime, environments: Sequence[dict[str, str]]) -> None:
        self.runtime, self.count = runtime, len(environments)
        self._environments = list(environments)
        self._workers: list[Worker | None] = [None] * len(self._environments)  # started when they are needed

    def agreed(self, function: Callable[[], Result]) -> Result:
        results: list[Result] = list(self.each(Called(function), range(self.count)))  # one for each worker
        if any(result != results[0] for result in results[1:]):
            different = sorted({str(result) for result in results})
            raise UserError(
                f"runtime.yaml: workers: found workers that differ ({' | '.join(different)}), expected GPUs of one kind; choose them "
                "with CUDA_VISIBLE_DEVICES"
            )
        return results[0]

    def each(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        run = Run(function, iter(pieces), AHEAD * self.count)
        for worker in self._workers:
            if worker:
                with suppress(OSError):  # dead: that shows when it is given a piece
                    worker.pipe.send((None, function))
        try:
            while True:
                for result in run.ready():
                    yield result
                    self._give(run)  # the stage may have taken its time
                self._give(run)
                busy = [worker for worker in self._workers if worker and worker.pieces]
                if not busy and run.turn not in run.done:
                    return
                for pipe in wait([worker.pipe for worker in busy]) if busy else ():
                    self._hear(run, next(worker for worker in busy if worker.pipe is pipe))
        finally:  # after an error, or if nobody wants the rest
            for place, worker in enumerate(self._workers):
                if worker and worker.pieces:
                    worker.end()
                    self._workers[place] = None

    def close(self) -> None:
        """End all workers."""
        for place, worker in enumerate(self._workers):
            if worker:
                worker.end()
            self._workers[place] = None

    def _give(self, run: Run) -> None:
        """Give out pieces, at first one to each worker."""
        for limit in range(1, GIVEN + 1):
            for place in range(len(self._workers)):
                worker = self._workers[place]
                if len(worker.pieces if worker else ()) >= limit:
                    continue
                numbered = run.next()
                if numbered is None:
                    return
                if worker is None:
                    worker = self._workers[place] = self._start(place, run.function)
                worker.give(*numbered)

    def _hear(self, run: Run, worker: Worker) -> None:
        """Handle a worker's result, or its death."""
        try:
            number, outcome = worker.pipe.recv()
        except (EOFError, OSError):
            self._lost(run, worker)
            return
        worker.pieces.popleft()
        run.done[number] = outcome

    def _lost(self, run: Run, worker: Worker) -> None:
        """Queue the pieces of a dead worker again; WorkersLost if the piece that it was computing has lost too many workers."""
        worker.process.join()
        self._workers[self._workers.index(worker)] = None
        end = f"killed by signal {-code}" if (code := worker.process.exitcode or 0) < 0 else f"ended with status {code}"
        cause = ", most likely for lack of memory" if code == -signal.SIGKILL else ""
        number = worker.pieces[0][0]
        run.lost[number] += 1
        if run.lost[number] > self.runtime.restarts:
            worker.pipe.close()
            worker.pieces.clear()
            raise WorkersLost(
                f"a worker was {end}{cause}, and {run.lost[number]} of them on the same work (runtime.yaml: restarts: "
                f"{self.runtime.restarts}); close other programs or set fewer workers, and run again"
            )
        print(f"a worker was {end}{cause}; its work is done again ({run.lost[number]} of {self.runtime.restarts})", file=sys.stderr)
        run.retries.extend(worker.pieces)
        worker.pieces.clear()
        worker.pipe.close()

    def _start(self, place: int, function: Callable[[Any], Any]) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, os.getpid(), self._environments[place]), daemon=True)
        process.start()
        theirs.close()
        ours.send((None, function))
        return Worker(process, ours)


def serve(pipe: Connection, parent: int, environment: dict[str, str]) -> None:
    """Be a worker: compute what comes through `pipe` until it closes.

    (None, function) sets the function for every (number, piece) after it.
    """
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the stage, which ends us
    os.environ.update(environment)
    become_worker()
    waiting: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, waiting), daemon=True).start()
    function: Callable[[Any], Any] | None = None
    while True:
        number, payload = waiting.get()
        if number is None:
            function = payload
            continue
        assert function is not None
        pipe.send((number, attempt(function, payload)))
        payload = None


def _receive(pipe: Connection, waiting: "queue.SimpleQueue[tuple[int | None, Any]]") -> None:
    """Read the stage's messages as they come: it may send a large piece while we send it a large result."""
    try:
        while True:
            waiting.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # a function that cannot be loaded
        sys.excepthook(*sys.exc_info())
        os._exit(1)
