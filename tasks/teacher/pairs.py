"""The pairs that a teacher scores, as tables of schema RANKED."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.ids import ordinals
from tasks.core.tables.schemas import RANKED

Floats = npt.NDArray[np.float32]


def query_ids(tables: Iterable[pa.Table]) -> tuple[pa.Array, int]:
    """The ids of all queries in `tables`, each once, and the total number of rows."""
    names, rows = pa.array([], pa.string()), 0
    for table in tables:
        names = pa.concat_arrays([names, table["query"].unique()]).unique()
        rows += len(table)
    return names, rows


def positives_of(queries: pa.Array, qrels: pa.Table, documents: Path) -> pa.Table:
    """Every known positive (grade above 0, in the corpus) of `queries`, once, with ranks and scores 0."""
    judged = qrels.filter(pc.and_(pc.greater(qrels["grade"], 0), pc.is_in(qrels["query"], value_set=queries)))
    judged = judged.filter(pa.array(ordinals(judged["doc"], documents) >= 0)).group_by(["query", "doc"], use_threads=False).aggregate([])
    zeros = np.zeros(len(judged))
    return pa.table([judged["query"], judged["doc"], pa.array(zeros, pa.int32()), pa.array(zeros, pa.float32())], schema=RANKED)


def replace_scores(table: pa.Table, scores: Floats) -> pa.Table:
    """Replace the scores of `table`. Ranks stay those of the source, so that a window keeps its meaning."""
    return table.set_column(3, RANKED.field("score"), pa.array(scores, pa.float32()))


def filter_by_margin(negatives: pa.Table, positives: pa.Table, margin: float | None) -> pa.Table:
    """The negatives that score at most their query's best positive minus `margin`; all if `margin` is None.

    RocketQA (arXiv:2010.08191) denoises by a fixed bound on a re-ranker's score. Here the bound is the positive's score minus `margin`.
    """
    if margin is None:
        return negatives
    known = positives["query"].unique()
    best = np.append(np.full(len(known), -np.inf), np.inf)  # the last is for queries without a positive
    np.maximum.at(best, pc.index_in(positives["query"], value_set=known).to_numpy(), positives["score"].to_numpy())
    place = pc.fill_null(pc.index_in(negatives["query"], value_set=known), len(known)).to_numpy()
    return negatives.filter(pa.array(negatives["score"].to_numpy() <= best[place] - margin))
