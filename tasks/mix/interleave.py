"""Merge two lists of negatives for each query. Queries are read one at a time, in the order of the training queries."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.tables.parquet import BATCH_ROWS, read_batches
from tasks.core.tables.schemas import RANKED
from tasks.core.trec.runs import batch_of_rows

Entry = tuple[str, float]  # document, score
Source = Callable[[str, int], list[Entry]]  # from a query (its id, its ordinal) to its negatives, best first


class Table:
    """A source that reads a table of negatives once, in order. Ask for queries in the table's order; one that is not there has none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._groups = self._read()
        self._next = next(self._groups, None)

    def __call__(self, query: str, ordinal: int) -> list[Entry]:
        del ordinal
        if self._next is None or self._next[0] != query:
            return []
        entries = self._next[1]
        self._next = next(self._groups, None)
        return entries

    def close(self) -> None:
        """UserError if rows were left unread, because the table has a different order of queries."""
        if self._next is not None:
            raise UserError(
                f"{self.path}: found query {self._next[0]!r} out of order, expected the order of the training queries; re-run its stage"
            )

    def _read(self) -> Iterator[tuple[str, list[Entry]]]:
        query, entries = "", list[Entry]()
        for batch in read_batches(self.path, RANKED):
            for name, doc, score in zip(batch["query"].to_pylist(), batch["doc"].to_pylist(), batch["score"].to_pylist(), strict=True):
                if name != query and entries:
                    yield query, entries
                    entries = []
                query = name
                entries.append((doc, score))
        if entries:
            yield query, entries


def random_source(ids: pa.Array, positives: dict[int, set[int]], depth: int, seed: int) -> Source:
    """A source of `depth` distinct random documents of the corpus, without the query's positives; a function of (seed, query's ordinal).

    Their score is NaN, which tells training that it may draw others instead.
    """

    def draw(_: str, ordinal: int) -> list[Entry]:
        known = positives.get(ordinal, set())
        number = min(depth, len(ids) - len(known))
        rng = np.random.default_rng([seed, ordinal])
        drawn: dict[int, None] = {}
        while len(drawn) < number:
            drawn |= {d: None for d in rng.integers(len(ids), size=number).tolist() if d not in known}
        return [(doc, math.nan) for doc in ids.take(pa.array(list(drawn)[:number], pa.int64())).to_pylist()]

    return draw


def interleave(first: list[Entry], second: list[Entry], ratio: float, depth: int) -> list[Entry]:
    """Mix at most `depth` documents, each once: the n-th comes from `first` if that keeps the fraction from `first` closest to `ratio`.

    The mixture ends when one list is used up, because the rest of the other would change the ratio.
    """
    lists = (iter(first), iter(second))
    mixed: dict[str, float] = {}
    first_count = 0
    while len(mixed) < depth:
        from_first = first_count + 0.5 <= ratio * (len(mixed) + 1)
        entry = next((e for e in lists[0 if from_first else 1] if e[0] not in mixed), None)
        if entry is None:
            break
        mixed[entry[0]] = entry[1]
        first_count += from_first
    return list(mixed.items())


def mix_negatives(queries: Iterable[str], first: Source, second: Source, ratio: float, depth: int) -> Iterator[pa.RecordBatch]:
    """The mixed negatives of `queries` (schema RANKED), ranks from 1, in batches of whole queries."""
    rows: list[tuple[str, str, int, float]] = []
    for ordinal, query in enumerate(queries):
        mixed = interleave(first(query, ordinal), second(query, ordinal), ratio, depth)
        rows += [(query, doc, rank, score) for rank, (doc, score) in enumerate(mixed, 1)]
        if len(rows) >= BATCH_ROWS:
            yield batch_of_rows(rows)
            rows = []
    yield batch_of_rows(rows)
