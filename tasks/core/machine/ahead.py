"""Give a device its next work before it has finished the last."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tasks.core.machine.devices import Coming

Work = TypeVar("Work")


def map_ahead(start: Callable[[Work], Coming], works: Iterable[Work]) -> Iterator[Coming]:
    """A `map` that starts each piece of work before it yields the last one's result: a GPU computes while the CPU reads and writes."""
    in_flight: list[Coming] = []
    for work in works:
        in_flight.append(start(work))
        if len(in_flight) == 2:
            yield in_flight.pop(0)
    yield from in_flight
