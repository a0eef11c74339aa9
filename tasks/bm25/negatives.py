"""Training negatives: candidates without any document known to be relevant."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.schemas import RANKED

ROWS = 2**18  # of a batch of candidates


def _keys(query: pa.Array, doc: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(query, doc, "\0")


def without_positives(candidates: Iterable[pa.RecordBatch | pa.Table], qrels: pa.Table) -> Iterator[pa.Table]:
    """`candidates` (RANKED, by query and rank, ranks without gaps) without pairs of grade > 0 in `qrels`, ranked again from 1.

    A query may continue in the next batch. All of `qrels` is scanned once per batch: use large ones.
    """
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))
    carried = 0  # positives already removed of the query that the next batch begins with
    for batch in candidates:
        if not batch.num_rows:
            continue
        asked = relevant.filter(pc.is_in(relevant["query"], value_set=pc.unique(batch["query"])))
        positives = _keys(asked["query"], asked["doc"]).combine_chunks()  # of this batch's queries, not of all
        positive = pc.is_in(_keys(batch["query"], batch["doc"]), value_set=positives).to_numpy(zero_copy_only=False)
        rank = batch["rank"].to_numpy()
        removed = np.concatenate([[0], np.cumsum(positive)])  # before each row, within this batch
        begin = np.maximum.accumulate(np.where(rank == 1, np.arange(len(rank)), -1))  # first row of each row's query; -1: an earlier batch
        above = np.where(begin >= 0, removed[:-1] - removed[begin], removed[:-1] + carried)
        carried = int(above[-1] + positive[-1])
        columns = [batch["query"], batch["doc"], pa.array(rank - above, pa.int32()), batch["score"]]
        yield pa.table(columns, schema=RANKED).filter(pa.array(~positive))
