"""Read two runs side by side, and search the grid of their fusions for the best setting on dev."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import ir_measures
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.metrics.measures import Qrels, cutoff, may_use_whole_run, per_query
from tasks.core.metrics.selection import best_of
from tasks.core.retrieval.fusion import GRIDS, Method, Pair, Ranked, fuse, pair
from tasks.core.trec.runs import ranked_batch, read_scored_run

QUERY_BLOCK = 256  # queries whose lists are in memory at a time


class Run:
    """A run, read in the order of the corpus's queries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lists = read_scored_run(path)
        self._next = next(self._lists, None)

    def of(self, query: str) -> Ranked:
        """The query's list; empty if the system found nothing. Ask for queries in corpus order."""
        if self._next is None or self._next[0] != query:
            return Ranked()
        _, documents, scores = self._next
        self._next = next(self._lists, None)
        return Ranked(documents, scores)

    def close(self) -> None:
        """UserError if lists remain unread: the run has an unknown query, or its queries are in a different order."""
        if self._next is not None:
            raise UserError(
                f"{self.path}: query {self._next[0]!r} is not in the corpus or is out of order, expected the corpus's order; "
                f"re-run the stage that makes this file"
            )


def side_by_side(queries: Iterable[str], first: Path, second: Path, method: Method) -> Iterator[tuple[str, Pair]]:
    """Yield each query with both lists, in the order of `queries`. Queries without a document in either run are left out."""
    runs = Run(first), Run(second)
    for query in queries:
        lists = [run.of(query) for run in runs]
        if any(ranked.documents for ranked in lists):
            yield query, pair(lists[0], lists[1], method)
    for run in runs:
        run.close()


def grid_means(
    pairs: Iterable[tuple[str, Pair]], method: Method, depth: int, *, qrels: Qrels, measure: Mapping[str, ir_measures.Measure]
) -> dict[float, float]:
    """The mean of `measure` (a single one, by name) over the queries of `qrels`, for every setting in the method's grid.

    A query without a list counts as 0. Lists are fused only as deep as the measure goes, and at most to `depth`.
    """
    (name,) = measure
    fused_depth = depth if may_use_whole_run(name) else min(depth, cutoff(name))
    values: dict[float, list[float]] = {setting: [] for setting in GRIDS[method]}
    judged = ((query, query_pair) for query, query_pair in pairs if query in qrels)
    while block := dict(islice(judged, QUERY_BLOCK)):
        block_qrels = {query: qrels[query] for query in block}
        for setting, query_values in values.items():
            lists = {query: [document for document, _ in fuse(query_pair, setting, fused_depth)] for query, query_pair in block.items()}
            query_values += [row[name] for row in per_query(measure, block_qrels, lists).values()]
    return {setting: math.fsum(query_values) / len(qrels) for setting, query_values in values.items()}


def best_setting(means: Mapping[float, float]) -> float:
    """The setting with the highest mean; on a tie, the first in the grid."""
    order = {setting: place for place, setting in enumerate(means)}
    return best_of(means, order.__getitem__)


def fused_batches(pairs: Iterable[tuple[str, Pair]], setting: float, depth: int) -> Iterator[pa.RecordBatch]:
    """The fused run (schema RANKED), QUERY_BLOCK queries at a time."""
    remaining = iter(pairs)
    while block := list(islice(remaining, QUERY_BLOCK)):
        yield ranked_batch([(query, fuse(query_pair, setting, depth)) for query, query_pair in block])
