"""The actors of a Ray cluster that compute the pieces of one `each`: each has a GPU, or CPU threads, and keeps what its pieces load.

An actor gets a piece only when it has a place on a node: so no piece waits for a node that never comes while another worker is idle.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from tasks.core.errors import WorkersLost
from tasks.core.params.runtime import RUNTIME_FILE
from tasks.core.workers.attempts import Outcome, Raised, Run

Numbered = tuple[int, Any]  # a piece and its number


class Actor:
    """A process on a node."""

    def call(self, function: Callable[..., Outcome], *arguments: Any) -> Outcome:
        """Call `function` there."""
        return function(*arguments)


class Crew:
    """The actors of one `each`. They compute the pieces of `run`, `limit` at a time: each calls work[0] with work[1:] and a piece.

    `settings`: the resources that Ray gives to each actor.
    """

    def __init__(self, ray: Any, settings: dict[str, Any], run: Run, limit: int, restarts: int, work: tuple[Any, ...]) -> None:
        self._ray, self._settings, self._run, self._limit, self._restarts, self._work = ray, settings, run, limit, restarts, work
        self._idle: list[Any] = []
        self._waiting: deque[Numbered] = deque()  # pieces without an actor
        self._starting: dict[Any, tuple[Any, set[str]]] = {}  # actors without a place, and the nodes at their start, by readiness
        self._running: dict[Any, tuple[Any, Numbered]] = {}  # actors and their pieces, by the references to the results

    def give(self) -> bool:
        """Give out pieces, and start actors for those that find no idle one. False if nothing is left to do."""
        while len(self._waiting) + len(self._running) < self._limit and (numbered := self._run.next()):
            self._waiting.append(numbered)
        while self._waiting and self._idle:
            actor, numbered = self._idle.pop(), self._waiting.popleft()
            self._running[actor.call.remote(*self._work, numbered[1])] = actor, numbered
        nodes = self._nodes() if len(self._starting) < len(self._waiting) else set[str]()
        while len(self._starting) < len(self._waiting):
            actor = self._ray.remote(**self._settings)(Actor).remote()
            self._starting[actor.__ray_ready__.remote()] = actor, nodes
        return bool(self._waiting or self._running)

    def hear(self, seconds: float) -> bool:
        """Wait up to `seconds` for a result, a lost actor, or a place for a new one. False if nothing came, and no actor has a piece."""
        from ray.exceptions import RayError, RayTaskError

        ended = self._ray.wait([*self._running, *self._starting], num_returns=1, timeout=seconds)[0]
        for reference in ended:
            if is_new := reference in self._starting:
                actor, nodes = self._starting.pop(reference)
            else:
                actor, numbered = self._running.pop(reference)
            try:
                outcome = self._ray.get(reference)
            except RayTaskError:  # of ours: a worker catches what its work raises
                raise
            except RayError as error:
                self._ray.kill(actor)  # it may be alive behind a network that is not
                if not is_new:
                    self._lost(numbered, error)
                elif self._waiting and nodes <= self._nodes():  # no node died: the piece that it was meant for counts it as lost
                    self._lost(self._waiting.popleft(), error)
                continue
            self._idle.append(actor)
            if not is_new:
                self._run.done[numbered[0]] = outcome
        return bool(ended or self._running)

    def end(self) -> None:
        """Kill all actors. This is safe: a file gets its name only when it is complete."""
        for actor in [*self._idle, *(actor for actor, _ in [*self._starting.values(), *self._running.values()])]:
            self._ray.kill(actor)

    def _nodes(self) -> set[str]:
        return {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}

    def _lost(self, numbered: Numbered, error: Exception) -> None:
        """Queue the piece of a lost actor again, unless that piece has lost too many actors."""
        number, lost = numbered[0], self._run.lost
        lost[number] += 1
        if lost[number] > self._restarts:
            self._run.done[number] = Raised(workers_lost(error, self._restarts))
            return
        times = f"{lost[number]} of {self._restarts}"
        print(f"a worker of the Ray cluster was lost ({first_line(error)}); its work is done again ({times})", file=sys.stderr, flush=True)
        self._run.retries.append(numbered)


def workers_lost(error: Exception, restarts: int) -> WorkersLost:
    """The error of a piece of work that lost its worker or node too often; `error` is Ray's, of the last time."""
    return WorkersLost(
        f"the Ray cluster lost the workers of a piece of work {restarts + 1} times ({RUNTIME_FILE}: restarts: {restarts}): "
        f"{first_line(error)}; see the nodes' memory and Ray's logs, and run again"
    )


def first_line(error: Exception) -> str:
    """The kind of an error of Ray's, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
