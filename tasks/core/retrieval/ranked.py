"""Search results as ranked lists of documents. Q queries, K rows of each (a row is a passage of a document), O documents.

Lists are ordered by score, ties by descending document id. That is trec_eval's order, so our ranks and figures agree with its.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.core.tables.schemas import RANKED

Floats = npt.NDArray[np.float32]
QUERY_BLOCK = 2048  # queries of a table, and of a search of a faiss index
MARGIN = 16  # rows kept beyond K, so that ties at rank K are broken by id, not at random


class Ids(Protocol):
    """Document ids by ordinal: an Arrow array, or tasks.core.tables.ids.StoredIds if they are too many for memory."""

    def __len__(self) -> int: ...

    def take(self, wanted: pa.Array) -> pa.Array: ...


def refuse_overflow(scores_QK: Floats, rows: int) -> None:
    """UserError if the best scores of `rows` finite vectors are not all finite: float32 ends at 3e38."""
    if not np.isfinite(scores_QK[:, :rows]).all():
        raise UserError(
            "exact search: found inner products too large for float32, expected vectors of norms below 1e19; train or encode again"
        )


def id_order(ids: pa.Array) -> Ints:
    """The position of every document in the order of ids, [O], which breaks ties."""
    order = pc.sort_indices(ids).to_numpy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def ranked_tables(
    scores_QK: Floats,
    rows_QK: Ints,
    query_ids: pa.Array,
    document_ids: Ids,
    owners: npt.NDArray[np.int32],
    depth: int,
    excluded: Ints | None = None,
) -> Iterator[pa.Table]:
    """Search results as ranked documents (schema RANKED), QUERY_BLOCK queries a table.

    A document appears once, by its best passage (MaxP). `excluded` are keys query * O + document that are removed
    before ranks are given; `depth` are kept, ranks from 1.
    """
    total = len(document_ids)
    excluded = None if excluded is None else np.sort(excluded)
    for start in range(0, len(query_ids), QUERY_BLOCK):
        scores, rows = scores_QK[start : start + QUERY_BLOCK], rows_QK[start : start + QUERY_BLOCK]
        is_result = rows.ravel() >= 0
        query = np.repeat(np.arange(start, start + len(rows)), rows.shape[1])[is_result]
        score = scores.ravel()[is_result]
        owner = owners[rows.ravel()[is_result]].astype(np.int64)
        found_owners, owner_place = np.unique(owner, return_inverse=True)
        found_ids = document_ids.take(pa.array(found_owners))
        order = np.lexsort((-id_order(found_ids)[owner_place], -score, query))
        query, score, owner, owner_place = query[order], score[order], owner[order], owner_place[order]
        key = query * total + owner
        is_kept = np.zeros(len(key), dtype=bool)
        is_kept[np.unique(key, return_index=True)[1]] = True
        if excluded is not None:
            edges = np.searchsorted(excluded, [start * total, (start + len(rows)) * total])
            is_kept &= ~np.isin(key, excluded[edges[0] : edges[1]])
        query, score, owner_place = query[is_kept], score[is_kept], owner_place[is_kept]
        rank = np.arange(len(query)) - np.searchsorted(query, query) + 1
        window = rank <= depth
        columns = [query_ids.take(pa.array(query[window])), found_ids.take(pa.array(owner_place[window])), rank[window], score[window]]
        yield pa.table(columns, schema=RANKED)
