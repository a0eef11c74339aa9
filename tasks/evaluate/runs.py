"""Read runs for the measures, a block of queries at a time."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tasks.core.tables.trec import read_run

QUERY_BLOCK = 512  # queries measured at once


def rankings(path: Path) -> Iterator[dict[str, list[str]]]:
    """Document ids, best first, for QUERY_BLOCK queries of a run at a time; see `read_run`."""
    lists = read_run(path)
    while block := dict(islice(lists, QUERY_BLOCK)):
        yield block
