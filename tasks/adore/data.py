"""The training queries of a query-side training: order, positives, given negatives. Draws are functions of (seed, epoch or step)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.adore.params import QuerySide
from tasks.core.errors import UserError
from tasks.core.records import QRELS, RANKED
from tasks.core.tables import read_table
from tasks.core.tokens import Ints, Tokens, ordinals
from tasks.core.training import draw_seed


@dataclass(frozen=True)
class Pairs:
    """Documents of each query, flat: query q has values[offsets[q]:offsets[q + 1]], in the order they were given."""

    offsets: Ints
    values: Ints

    def of(self, query: int) -> Ints:
        return self.values[self.offsets[query] : self.offsets[query + 1]]


@dataclass(frozen=True)
class Data:
    """Queries with at least one positive [N], all their known positives, and given negatives, best first."""

    queries: Ints
    positives: Pairs
    negatives: Pairs | None
    documents: int


def pairs_of(queries: Ints, documents: Ints, count: int) -> Pairs:
    """Pairs (query, document) by query 0..count-1; pairs of unknown ids (-1) are left out."""
    known = (queries >= 0) & (documents >= 0)
    queries, documents = queries[known], documents[known]
    offsets = np.concatenate([[0], np.bincount(queries, minlength=count).cumsum()])
    return Pairs(offsets, documents[np.argsort(queries, kind="stable")])


def read_data(queries: Tokens, document_ids: Path, qrels: Path, negatives: Path | None, depth: int) -> Data:
    """Judgements of the training queries and the `depth` best of the given negatives; UserError where there is nothing to train on."""
    query_ids = queries.folder / "ids.parquet"
    count, total = pq.read_metadata(query_ids).num_rows, pq.read_metadata(document_ids).num_rows
    judged = read_table(qrels, QRELS)
    judged = judged.filter(pc.greater(judged["grade"], 0))
    positives = pairs_of(ordinals(judged["query"], query_ids), ordinals(judged["doc"], document_ids), count)
    if not len(positives.values):
        raise UserError(
            f"{qrels}: no training query has a relevant document; give the dataset a train split, or take the entry of adore away"
        )
    given = None
    if negatives is not None:
        mined = read_table(negatives, RANKED)
        mined = mined.filter(pc.less_equal(mined["rank"], depth))
        given = pairs_of(ordinals(mined["query"], query_ids), ordinals(mined["doc"], document_ids), count)
        if not len(given.values):
            raise UserError(f"{negatives}: no negative of rank 1 to {depth}, expected some to train on; for random ones set lists: random")
    return Data(np.flatnonzero(np.diff(positives.offsets)), positives, given, total)


def steps_of(data: Data, params: QuerySide) -> int:
    """Optimizer steps; the last batch of an epoch is filled from the next epoch, so every batch is full."""
    return params.steps or max(1, round(params.epochs * len(data.queries) / params.batch_queries))


def batch_of(data: Data, params: QuerySide, step: int) -> Ints:
    """The queries of step `step`, [B]: a new permutation each epoch."""
    total = len(data.queries)
    size = min(params.batch_queries, total)
    place = np.arange(step * size, (step + 1) * size)
    orders = {e: np.random.default_rng(draw_seed(params.seed, 1, e)).permutation(total) for e in np.unique(place // total).tolist()}
    chosen = [orders[p // total][p % total] for p in place.tolist()]
    return data.queries[chosen]
