"""Pieces of work: which come next, and their results or exceptions in a form that passes between processes."""

import os
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks.core.errors import UserError
from tasks.core.files import WORKER

AHEAD = 3  # pieces per worker that are given out or done before their turn; this bounds memory


@dataclass(frozen=True)
class Returned:
    """A piece's result."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """A piece's exception."""

    error: BaseException


Outcome = Returned | Raised


def attempt(function: Callable[[Any], Any], piece: Any) -> Outcome:
    """Call `function` on `piece`; return its result or its exception."""
    try:
        return Returned(function(piece))
    except Exception as error:
        if isinstance(error, UserError):
            return Raised(error)
        text = traceback.format_exc()
        if type(error).__module__ != "builtins":  # a library's: it may not survive the transfer
            return Raised(RuntimeError(text))
        error.add_note(f"in a worker:\n{text}")
        return Raised(error)


def result_of(outcome: Outcome) -> Any:
    """Return the result, or raise the exception."""
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value


def become_worker() -> None:
    """Set this process up as a worker, as WORKER says."""
    os.environ[WORKER] = "1"


@dataclass(frozen=True)
class Called:
    """A function without arguments, called once for each piece."""

    function: Callable[[], Any]

    def __call__(self, _: int) -> Any:
        return self.function()


class Run:
    """The pieces of one `each`: which come next, which are done before their turn, and how often each lost its worker."""

    def __init__(self, function: Callable[[Any], Any], pieces: Iterator[Any], ahead: int) -> None:
        self.function, self._pieces, self._ahead = function, pieces, ahead
        self._number = self.turn = 0
        self.done: dict[int, Outcome] = {}
        self.retries: deque[tuple[int, Any]] = deque()
        self.lost: Counter[int] = Counter()

    def ready(self) -> Iterator[Any]:
        """The results whose turn has come, in order; raises where a piece has failed."""
        while self.turn in self.done:
            outcome = self.done.pop(self.turn)
            self.turn += 1
            yield result_of(outcome)

    def next(self) -> tuple[int, Any] | None:
        """A piece to give out, and its number; None if there is none, or if too many are ahead."""
        if self.retries:
            return self.retries.popleft()
        if self._number >= self.turn + self._ahead:
            return None
        for piece in self._pieces:
            self._number += 1
            return self._number - 1, piece
        return None
