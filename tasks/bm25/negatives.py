"""Training negatives: the candidates without known relevant documents. And these relevant documents, with their scores."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.schemas import RANKED

ROWS = 2**18  # in a batch of candidates


def _keys(query: pa.Array, doc: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(query, doc, "\0")


def without_positives(candidates: Iterable[pa.RecordBatch | pa.Table], qrels: pa.Table) -> Iterator[pa.Table]:
    """Remove pairs of grade > 0 in `qrels` from `candidates` (RANKED, by query and rank, ranks without gaps), and rank again from 1.

    A query may continue in the next batch. All of `qrels` is scanned once per batch, so use large batches.
    """
    for negatives, _ in _parted(candidates, qrels):
        yield negatives


def only_positives(candidates: Iterable[pa.RecordBatch | pa.Table], qrels: pa.Table) -> Iterator[pa.Table]:
    """The pairs that `without_positives` removes, ranked from 1 within each query."""
    for _, positives in _parted(candidates, qrels):
        yield positives


def _parted(candidates: Iterable[pa.RecordBatch | pa.Table], qrels: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))
    carried = 0  # positives removed in earlier batches from the query that the next batch begins with
    for batch in candidates:
        if not batch.num_rows:
            continue
        batch_relevant = relevant.filter(pc.is_in(relevant["query"], value_set=pc.unique(batch["query"])))
        positives = _keys(batch_relevant["query"], batch_relevant["doc"]).combine_chunks()  # only of this batch's queries
        positive = pc.is_in(_keys(batch["query"], batch["doc"]), value_set=positives).to_numpy(zero_copy_only=False)
        rank = batch["rank"].to_numpy()
        removed = np.concatenate([[0], np.cumsum(positive)])  # before each row, within this batch
        begin = np.maximum.accumulate(np.where(rank == 1, np.arange(len(rank)), -1))  # first row of each row's query; -1: an earlier batch
        above = np.where(begin >= 0, removed[:-1] - removed[begin], removed[:-1] + carried)
        carried = int(above[-1] + positive[-1])
        yield _ranked(batch, rank - above).filter(pa.array(~positive)), _ranked(batch, above + 1).filter(pa.array(positive))


def _ranked(batch: pa.RecordBatch | pa.Table, rank: npt.NDArray[np.integer]) -> pa.Table:
    return pa.table([batch["query"], batch["doc"], pa.array(rank, pa.int32()), batch["score"]], schema=RANKED)
