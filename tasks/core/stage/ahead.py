"""Give a device its next work before it has finished the last."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tasks.core.stage.devices import Coming

Work = TypeVar("Work")


def map_ahead(start: Callable[[Work], Coming], works: Iterable[Work]) -> Iterator[Coming]:
    """A `map` that starts each piece of work before it yields the last one's result: a GPU computes while the CPU reads and writes."""
    before: list[Coming] = []
    for work in works:
        before.append(start(work))
        if len(before) == 2:
            yield before.pop(0)
    yield from before
