"""Known positives as a table, and removal of negatives that score too close to them: probably unjudged positives."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.retrieval.ranked import QUERY_BLOCK, Floats
from tasks.core.tables.ids import Ints
from tasks.core.tables.schemas import RANKED


def ranked_positives(query: Ints, document: Ints, scores: Floats, query_ids: pa.Array, document_ids: pa.Array) -> pa.Table:
    """Positive pairs as a table (schema RANKED), by query, best first. Ranks are among the positives of a query."""
    order = np.lexsort((document, -scores, query))
    query, document, scores = query[order], document[order], scores[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query) + 1
    columns = [query_ids.take(pa.array(query)), document_ids.take(pa.array(document)), pa.array(rank, pa.int32()), pa.array(scores)]
    return pa.table(columns, schema=RANKED)


def thresholds(query: Ints, scores: Floats, queries: int, relative: float | None, absolute: float | None) -> npt.NDArray[np.float64]:
    """The score above which each query's negatives are discarded, [Q]: its best positive's score minus the larger of the margins.

    inf for a query without positives, or without margins. The relative margin is a fraction of the score's absolute value, so the bound
    is below the positive even for negative scores.
    """
    best = np.full(queries, -np.inf)
    np.maximum.at(best, query, scores.astype(np.float64))
    bound = np.full(queries, np.inf)
    has_positive = np.isfinite(best)
    for margin in ([] if relative is None else [relative * np.abs(best[has_positive])]) + ([] if absolute is None else [absolute]):
        bound[has_positive] = np.minimum(bound[has_positive], best[has_positive] - margin)
    return bound


def _ordinals(names: pa.ChunkedArray, query_ids: pa.Array, start: int) -> Ints:
    """The ordinals of `names`. All are `start` or later, and usually close to it, so only some ids are searched for each table."""
    count = QUERY_BLOCK
    while (places := pc.index_in(names, value_set=query_ids.slice(start, count))).null_count and start + count < len(query_ids):
        count *= 2
    ordinals: Ints = places.to_numpy() + start
    return ordinals


def filter_negatives(
    tables: Iterable[pa.Table], bound: npt.NDArray[np.float64], query_ids: pa.Array, depth: int, skip: int
) -> Iterator[pa.Table]:
    """Remove negatives that score above their query's bound, then the top `skip`; keep at most `depth` per query.

    `tables` (schema RANKED) have whole queries in the order of `query_ids`, best first.
    """
    start = 0
    for table in tables:
        query = _ordinals(table["query"], query_ids, start)
        start = int(query[-1]) + 1 if len(query) else start
        is_kept = table["score"].to_numpy() <= bound[query]
        query, table = query[is_kept], table.filter(pa.array(is_kept))
        begin = np.flatnonzero(np.diff(query, prepend=-1))
        rank = np.arange(len(query)) - np.repeat(begin, np.diff(begin, append=len(query))) + 1 - skip
        table = table.set_column(2, RANKED.field("rank"), pa.array(rank, pa.int32()))
        yield table.filter(pa.array((rank >= 1) & (rank <= depth)))
