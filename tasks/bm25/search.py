"""Retrieval: every document that shares a term with the query, best first.

Lists are ordered by score, ties by document id falling: trec_eval's order, so ranks, our figures and its agree.
"""

from collections.abc import Callable, Iterable, Iterator

import bm25s
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.bm25.index import id_order
from tasks.core.records import RANKED
from tasks.core.tables import StoredIds

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
QUERY_BLOCK = 256  # queries whose results are held before they are written: 256 x 1000 ranks are 4 MB
HELD = 2**19  # results, where many tie at the last rank


def scores_of(index: bm25s.BM25, terms: list[str]) -> Floats:
    """BM25 of every document, float32 [N]; a term that stands twice in the query counts twice, as in Lucene."""
    known = [index.vocab_dict[term] for term in terms if term in index.vocab_dict]
    scores: Floats = index.get_scores_from_ids(known)
    return scores


def best(scores: Floats, depth: int) -> Ints:
    """Rows of the `depth` largest scores above 0, in no order, with all that tie at the last rank: id decides, not chance."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > depth:
        threshold = np.partition(scores[rows], len(rows) - depth)[len(rows) - depth]
        rows = rows[scores[rows] >= threshold]
    return rows


def ranked(
    queries: Iterable[tuple[str, str]], index: bm25s.BM25, ids: pa.Array | StoredIds, terms: Callable[[str], list[str]], depth: int
) -> Iterator[pa.Table]:
    """Ranked documents (schema RANKED) of `queries` (id, text), in their order, QUERY_BLOCK queries a table or HELD results."""
    names: list[str] = []
    found: list[tuple[Ints, Floats]] = []
    held = 0
    for name, text in queries:
        scores = scores_of(index, terms(text))
        rows = best(scores, depth)
        names.append(name)
        found.append((rows, scores[rows]))
        held += len(rows)
        if len(found) == QUERY_BLOCK or held >= HELD:
            yield _table(names, found, ids, depth)
            names, found, held = [], [], 0
    if found:
        yield _table(names, found, ids, depth)


def _table(names: list[str], found: list[tuple[Ints, Floats]], ids: pa.Array | StoredIds, depth: int) -> pa.Table:
    """The rows of some queries in their order: by score, ties by falling id."""
    query = np.repeat(np.arange(len(names)), [len(rows) for rows, _ in found])
    scores = np.concatenate([scores for _, scores in found])
    unique, which = np.unique(np.concatenate([rows for rows, _ in found]), return_inverse=True)
    found_ids = ids.take(pa.array(unique))
    order = np.lexsort((-id_order(found_ids).to_numpy()[which], -scores, query))
    query, scores, which = query[order], scores[order], which[order]
    rank = np.arange(1, len(query) + 1) - np.searchsorted(query, query)
    kept = rank <= depth
    columns = [
        pa.array(names, pa.string()).take(pa.array(query[kept])),
        found_ids.take(pa.array(which[kept])),
        pa.array(rank[kept], pa.int32()),
        pa.array(scores[kept], pa.float32()),
    ]
    return pa.table(columns, schema=RANKED)
