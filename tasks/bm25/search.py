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

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
QUERY_BLOCK = 256  # queries whose results are held before they are written: 256 x 1000 ranks are 4 MB


def scores_of(index: bm25s.BM25, terms: list[str]) -> Floats:
    """BM25 of every document, float32 [N]; a term that stands twice in the query counts twice, as in Lucene."""
    known = [index.vocab_dict[term] for term in terms if term in index.vocab_dict]
    scores: Floats = index.get_scores_from_ids(known)
    return scores


def best(scores: Floats, place: Ints, depth: int) -> Ints:
    """Rows of the `depth` largest scores above 0, best first, ties by falling `place`."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > depth:
        threshold = np.partition(scores[rows], len(rows) - depth)[len(rows) - depth]
        rows = rows[scores[rows] >= threshold]  # with all ties at the last rank: id decides, not chance
    return rows[np.lexsort((-place[rows], -scores[rows]))][:depth]


def ranked(
    queries: Iterable[tuple[str, str]], index: bm25s.BM25, ids: pa.Array, terms: Callable[[str], list[str]], depth: int
) -> Iterator[pa.Table]:
    """Ranked documents (schema RANKED) of `queries` (id, text), in their order, QUERY_BLOCK queries a table."""
    place = id_order(ids).to_numpy()
    names: list[str] = []
    found: list[tuple[Ints, Floats]] = []
    for name, text in queries:
        scores = scores_of(index, terms(text))
        rows = best(scores, place, depth)
        names.append(name)
        found.append((rows, scores[rows]))
        if len(found) == QUERY_BLOCK:
            yield _table(names, found, ids)
            names, found = [], []
    if found:
        yield _table(names, found, ids)


def _table(names: list[str], found: list[tuple[Ints, Floats]], ids: pa.Array) -> pa.Table:
    counts = [len(rows) for rows, _ in found]
    owner = np.repeat(np.arange(len(names)), counts)
    columns = [
        pa.array(names, pa.string()).take(pa.array(owner)),
        ids.take(pa.array(np.concatenate([rows for rows, _ in found]))),
        pa.array(np.concatenate([np.arange(1, count + 1) for count in counts]), pa.int32()),
        pa.array(np.concatenate([scores for _, scores in found]), pa.float32()),
    ]
    return pa.table(columns, schema=RANKED)
