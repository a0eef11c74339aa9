"""A piece of work as a worker does it: what it returns, or what it raises, as something that passes between processes."""

import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.core.stage.progress import SILENT


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
    """`function` of `piece`, whatever happens."""
    try:
        return Returned(function(piece))
    except Exception as error:
        text = traceback.format_exc()
        error.add_note(f"in a worker:\n{text}")  # shown only for an error that no user can fix
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, to see whether it passes
        except Exception:
            return Raised(RuntimeError(text))
        return Raised(error)


def result_of(outcome: Outcome) -> Any:
    """The result, or the exception raised here."""
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome.value


def become_worker() -> None:
    """Set this process up as a worker: only the stage shows progress."""
    os.environ[SILENT] = "1"
