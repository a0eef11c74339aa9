"""Search for documents of several passages (MaxP): as many rows as each query needs, and of each document the best one.

Q queries, R rows (a row is a passage of a document), K rows of a query. `owners` [R] has the document of each row, sorted.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.ranked import MARGIN, QUERY_BLOCK, Floats
from tasks.core.tables.ids import Ints

FIRST = 4  # rows of each wanted document that are searched for at first
Queries = TypeVar("Queries", bound=Any)  # an array or tensor [Q, D]


def rows_needed(documents: int, owners: npt.NDArray[np.int32]) -> int:
    """How many rows include `documents` different ones for certain, even if all passages of each come first."""
    most = 1
    while len(owners) > most and (owners[most:] == owners[:-most]).any():  # m passages are two equal numbers m - 1 apart
        most += 1
    return documents * most


def rows_at_first(documents: int, owners: npt.NDArray[np.int32]) -> int:
    """How many rows `best_passages` searches for at first, for `documents` different ones."""
    return min(FIRST * documents, rows_needed(documents, owners))


def best_passages(
    search: Callable[[Queries, int], tuple[Floats, Ints]],
    queries_QD: Queries,
    owners: npt.NDArray[np.int32],
    documents: int,
    needed: int | None = None,
) -> tuple[Floats, Ints]:
    """The best `documents` different documents of every query, and up to MARGIN more, each by its best row: scores float32 and rows int64
    [Q, documents + MARGIN], best first, -inf and -1 where there are fewer.

    `search` returns at least the given number of best rows, in the same form. Queries whose first rows belong to too few documents are
    searched for again, with twice as many rows each time, until the rows suffice in any case (`needed`, that of `rows_needed`). No search
    has more results than the first. If each document has one passage, the result of `search` is returned.
    """
    needed = min(rows_needed(documents, owners) if needed is None else needed, len(owners))
    if needed <= documents:
        return search(queries_QD, needed)
    rows = first = min(FIRST * documents, needed)
    keep, wanted = documents + MARGIN, min(documents, int(owners[-1]) + 1)
    scores_QK, rows_QK, enough_Q = first_of_each(*search(queries_QD, rows), owners, keep, rows, wanted)
    short = np.flatnonzero(~enough_Q)
    while len(short) and rows < needed:
        rows = min(2 * rows, needed)
        unfinished = []
        for part in _parts(short, max(1, min(len(rows_QK), QUERY_BLOCK) * first // rows)):
            scores_QK[part], rows_QK[part], enough_Q = first_of_each(*search(queries_QD[part], rows), owners, keep, rows, wanted)
            unfinished.append(part[~enough_Q])
        short = np.concatenate(unfinished)
    return scores_QK, rows_QK


def _parts(queries: Ints, most: int) -> Iterator[Ints]:
    """`queries` (sorted) in parts of at most `most`, none over a border of QUERY_BLOCK: the same in any larger set of queries."""
    for block in np.split(queries, np.flatnonzero(np.diff(queries // QUERY_BLOCK)) + 1):
        yield from np.array_split(block, -(-len(block) // most))


def first_of_each(
    scores_QK: Floats, rows_QK: Ints, owners: npt.NDArray[np.int32], keep: int, searched: int, wanted: int
) -> tuple[Floats, Ints, npt.NDArray[np.bool_]]:
    """The first row of each document and its score, both [Q, `keep`], and for which queries [Q] the rows are enough.

    They are if the first `searched` rows have `wanted` documents, or if there are no more rows.
    """
    owner_QK = np.where(rows_QK >= 0, owners[np.maximum(rows_QK, 0)], -1)
    order_QK = np.argsort(owner_QK, axis=1, kind="stable")
    sorted_QK = np.take_along_axis(owner_QK, order_QK, 1)
    first_QK = np.zeros(owner_QK.shape, dtype=bool)
    new_QK = np.ones(owner_QK.shape, dtype=bool)
    new_QK[:, 1:] = sorted_QK[:, 1:] != sorted_QK[:, :-1]
    np.put_along_axis(first_QK, order_QK, new_QK & (sorted_QK >= 0), 1)
    place_QK = np.cumsum(first_QK, axis=1) - 1
    query, column = np.nonzero(first_QK & (place_QK < keep))
    kept_scores_QK = np.full((len(rows_QK), keep), -np.inf, dtype=np.float32)
    kept_rows_QK = np.full((len(rows_QK), keep), -1, dtype=np.int64)
    place = place_QK[query, column]
    kept_scores_QK[query, place], kept_rows_QK[query, place] = scores_QK[query, column], rows_QK[query, column]
    enough_Q = (first_QK[:, :searched].sum(axis=1) >= wanted) | (rows_QK[:, searched - 1] < 0)
    return kept_scores_QK, kept_rows_QK, enough_Q
