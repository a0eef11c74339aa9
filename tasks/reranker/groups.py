"""What a step trains on: queries, and of each a positive and some negatives. Every draw is a function of (seed, epoch) or (seed, step)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.records import QRELS, QUERIES, RANKED
from tasks.core.tables import read_table
from tasks.core.tokens import Ints, ordinals
from tasks.core.training import draw_seed
from tasks.reranker.params import Reranker


@dataclass(frozen=True)
class Groups:
    """Ordinals of documents by query: query q has positives[p_starts[q]:p_starts[q + 1]], and negatives alike; `queries` have both."""

    queries: Ints
    positives: Ints
    p_starts: Ints
    negatives: Ints
    n_starts: Ints


def read_groups(corpus: Path, negatives: Path, window: tuple[int, int]) -> Groups:
    """Positives and negatives of the training queries; UserError where no query has both."""
    queries, documents = corpus / "queries" / "train.parquet", corpus / "documents.parquet"
    judged = read_table(corpus / "qrels" / "train.parquet", QRELS)
    judged = judged.filter(pc.greater(judged["grade"], 0))
    mined = read_table(negatives, RANKED)
    mined = mined.filter(pc.and_(pc.greater_equal(mined["rank"], window[0]), pc.less_equal(mined["rank"], window[1])))
    count = len(read_table(queries, QUERIES, ["id"]))
    lists = []
    for table in (judged, mined):
        q, d = ordinals(table["query"], queries), ordinals(table["doc"], documents)
        known = (q >= 0) & (d >= 0)
        q, d = q[known], d[known]
        lists += [d[np.argsort(q, kind="stable")], np.concatenate([[0], np.bincount(q, minlength=count).cumsum()])]
    both = np.flatnonzero((np.diff(lists[1]) > 0) & (np.diff(lists[3]) > 0))
    if not len(both):
        raise UserError(
            f"{negatives}: no training query has both a positive and a negative of rank {window[0]} to {window[1]}; name others"
        )
    return Groups(both, *lists)


def draw_groups(groups: Groups, params: Reranker, step: int) -> list[tuple[int, list[int]]]:
    """The step's queries, each with its documents, the positive first; fewer negatives than asked for repeat."""
    total, size = len(groups.queries), min(params.batch_queries, len(groups.queries))
    rng = np.random.default_rng(draw_seed(params.seed, 2, step))
    places = range(step * size, (step + 1) * size)
    order = {e: np.random.default_rng(draw_seed(params.seed, 1, e)).permutation(total) for e in {place // total for place in places}}
    drawn = []
    for place in places:
        query = int(groups.queries[order[place // total][place % total]])
        positives = groups.positives[groups.p_starts[query] : groups.p_starts[query + 1]]
        negatives = groups.negatives[groups.n_starts[query] : groups.n_starts[query + 1]]
        hard = rng.choice(negatives, size=params.hard_negatives, replace=len(negatives) < params.hard_negatives)
        drawn.append((query, [int(rng.choice(positives)), *hard.tolist()]))
    return drawn
