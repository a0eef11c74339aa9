"""The pairs that a teacher scores, as tables of schema RANKED."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.records import RANKED
from tasks.core.tokens import ordinals

Floats = npt.NDArray[np.float32]


def positives_of(negatives: pa.Table, qrels: pa.Table, documents: Path) -> pa.Table:
    """Every known positive (grade above 0, in the corpus) of the queries of `negatives`, once; ranks and scores are 0 yet."""
    judged = qrels.filter(pc.and_(pc.greater(qrels["grade"], 0), pc.is_in(qrels["query"], value_set=negatives["query"].combine_chunks())))
    judged = judged.filter(pa.array(ordinals(judged["doc"], documents) >= 0)).group_by(["query", "doc"], use_threads=False).aggregate([])
    zeros = np.zeros(len(judged))
    return pa.table([judged["query"], judged["doc"], pa.array(zeros, pa.int32()), pa.array(zeros, pa.float32())], schema=RANKED)


def rescored(table: pa.Table, scores: Floats) -> pa.Table:
    """`table` with other scores; ranks stay those of the source, so that a window means what it meant."""
    return table.set_column(3, RANKED.field("score"), pa.array(scores, pa.float32()))


def apart(negatives: pa.Table, positives: pa.Table, margin: float | None) -> pa.Table:
    """The negatives that score at most their query's best positive less `margin` (RocketQA's denoising); all of them without a margin."""
    if margin is None:
        return negatives
    best: dict[str, float] = {}
    for query, score in zip(positives["query"].to_pylist(), positives["score"].to_pylist(), strict=True):
        best[query] = max(score, best.get(query, score))
    bound = [best.get(query, np.inf) - margin for query in negatives["query"].to_pylist()]
    return negatives.filter(pc.less_equal(negatives["score"].cast(pa.float64()), pa.array(bound, pa.float64())))
