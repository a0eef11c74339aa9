"""Exact search: blocked matrix products with a running top-k, in memory that does not depend on the corpus.

Q queries, R rows (a row is a passage of a document), D width, K rows kept. Lists are ordered by score, ties by descending
document id. That is trec_eval's order, so our ranks and figures agree with its.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from tasks.core.stage.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.core.tables.schemas import RANKED

Floats = npt.NDArray[np.float32]


class Ids(Protocol):
    """Document ids by ordinal: an Arrow array, or tasks.core.tables.parquet.StoredIds if they are too many for memory."""

    def __len__(self) -> int: ...

    def take(self, wanted: pa.Array) -> pa.Array: ...


QUERY_BLOCK = 2048  # a block of scores is QUERY_BLOCK x the rows of a shard: 32 MiB at 4096 rows
MARGIN = 16  # rows kept beyond K, so that ties at rank K are broken by id, not at random


def exact_search(
    queries_QD: Floats,
    blocks: Iterable[tuple[int, npt.NDArray[np.floating] | torch.Tensor]],
    k: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product: scores float32 [Q, k + MARGIN] and rows int64 [Q, k + MARGIN].

    `blocks` are (first row, vectors [R_b, D]); tensors are taken as they are, on `device` and finite. Where there are fewer
    rows, scores are -inf and rows -1. `done` is called with the number of rows of each block. UserError for a vector that is not finite.
    """
    queries = torch.from_numpy(np.ascontiguousarray(queries_QD)).to(device)
    keep = k + MARGIN
    best = torch.full((len(queries), keep), -torch.inf, device=device)
    best_rows = torch.full((len(queries), keep), -1, dtype=torch.int64, device=device)
    for first, block in blocks:
        vectors_RD = block if isinstance(block, torch.Tensor) else finite_block(first, block, device)
        for start in range(0, len(queries), QUERY_BLOCK):
            part = slice(start, start + QUERY_BLOCK)
            scores_QR = queries[part] @ vectors_RD.T
            entering = int((scores_QR > best[part, -1:]).sum(dim=1).max())  # few after some blocks: topk is most of the work
            if not entering:
                continue
            scores_QK, rows_QK = scores_QR.topk(min(keep, entering), dim=1)
            scores_QK, order_QK = torch.cat([best[part], scores_QK], dim=1).topk(keep, dim=1)
            best_rows[part] = torch.cat([best_rows[part], rows_QK + first], dim=1).gather(1, order_QK)
            best[part] = scores_QK
        done(len(block))
    return best.cpu().numpy(), best_rows.cpu().numpy()


def finite_block(first: int, block: npt.NDArray[np.floating], device: torch.device) -> torch.Tensor:
    """Vectors of the rows from `first` on, float32 on `device`; UserError for one that is not finite."""
    vectors_RD = torch.from_numpy(np.array(block, dtype=np.float32)).to(device)
    if not torch.isfinite(vectors_RD).all():
        raise UserError(f"vectors of rows {first} to {first + len(block) - 1}: found NaN or infinity; train or encode that model again")
    return vectors_RD


def rows_needed(documents: int, owners: npt.NDArray[np.int32]) -> int:
    """How many rows to find so that they include `documents` different ones, in the worst case of all passages of each.

    `owners` is sorted, so a document of m passages is two equal numbers m - 1 apart.
    """
    most = 1
    while len(owners) > most and (owners[most:] == owners[:-most]).any():
        most += 1
    return documents * most


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
    skip: int = 0,
    excluded: Ints | None = None,
) -> Iterator[pa.Table]:
    """Search results as ranked documents (schema RANKED), QUERY_BLOCK queries a table.

    A document appears once, by its best passage (MaxP). `excluded` are keys query * O + document that are removed
    before ranks are given; the top `skip` of the rest are removed; `depth` are kept, ranks from 1.
    """
    total = len(document_ids)
    excluded = None if excluded is None else np.sort(excluded)
    for start in range(0, len(query_ids), QUERY_BLOCK):
        scores, rows = scores_QK[start : start + QUERY_BLOCK], rows_QK[start : start + QUERY_BLOCK]
        found = rows.ravel() >= 0
        query = np.repeat(np.arange(start, start + len(rows)), rows.shape[1])[found]
        score = scores.ravel()[found]
        owner = owners[rows.ravel()[found]].astype(np.int64)
        found_owners, which = np.unique(owner, return_inverse=True)
        found_ids = document_ids.take(pa.array(found_owners))
        order = np.lexsort((-id_order(found_ids)[which], -score, query))
        query, score, owner, which = query[order], score[order], owner[order], which[order]
        key = query * total + owner
        kept = np.zeros(len(key), dtype=bool)
        kept[np.unique(key, return_index=True)[1]] = True
        if excluded is not None:
            here = np.searchsorted(excluded, [start * total, (start + len(rows)) * total])
            kept &= ~np.isin(key, excluded[here[0] : here[1]])
        query, score, which = query[kept], score[kept], which[kept]
        rank = np.arange(len(query)) - np.searchsorted(query, query) + 1 - skip
        window = (rank >= 1) & (rank <= depth)
        columns = [query_ids.take(pa.array(query[window])), found_ids.take(pa.array(which[window])), rank[window], score[window]]
        yield pa.table(
            [pa.array(c, type=f.type) if isinstance(c, np.ndarray) else c for c, f in zip(columns, RANKED, strict=True)], schema=RANKED
        )
