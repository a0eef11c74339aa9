"""What a step trains on: queries, a positive and hard negatives of each, and which documents are whose positives.

B queries, H hard negatives a query, S = B + B H candidate slots, U distinct documents among them.
Every draw is a function of (seed, epoch) or (seed, step) alone.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.records import QRELS, RANKED
from tasks.core.tables import count_rows, read_table
from tasks.core.tokens import Ints, Tokens, ordinals
from tasks.core.training import draw_seed
from tasks.train.params import Round

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Lists:
    """A list of documents for each query, flat: query q has values[offsets[q]:offsets[q + 1]]."""

    offsets: Ints
    values: Ints

    @property
    def counts(self) -> Ints:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class TrainingSet:
    """Queries with at least one positive: their rows, their positives (all known ones) and their hard negatives, best first."""

    queries: Ints  # [N] query ordinals
    positives: Lists  # of document ordinals
    negatives: Lists
    documents: int


@dataclass(frozen=True)
class Batch:
    """One step. `slots` index into `documents`."""

    queries: Ints  # [B] query ordinals
    documents: Ints  # [U] document ordinals, distinct
    slots: Ints  # [S]
    positive: Bools  # [B, S] known positives of the query, its target among them
    own: Bools  # [B, S] its own hard negatives


def lists_of(queries: Ints, documents: Ints, count: int) -> Lists:
    """Pairs (query, document), in order, as one list per query 0..count-1."""
    order = np.argsort(queries, kind="stable")
    offsets = np.concatenate([[0], np.bincount(queries, minlength=count).cumsum()])
    return Lists(offsets, documents[order])


def read_training_set(queries: Tokens, documents: Tokens, qrels: Path, negatives: Path, window: tuple[int, int]) -> TrainingSet:
    """Judgements and negatives of the training queries; UserError where there is nothing to train on."""
    query_ids, document_ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    judged = read_table(qrels, QRELS)
    judged = judged.filter(pc.greater(judged["grade"], 0))
    q, d = ordinals(judged["query"], query_ids), ordinals(judged["doc"], document_ids)
    known = (q >= 0) & (d >= 0)
    if not known.any():
        raise UserError(
            f"{qrels}: no training query has a relevant document; give the dataset a train split, or set steps: 0 in every round"
        )
    count, total = count_rows(query_ids), count_rows(document_ids)
    positives = lists_of(q[known], d[known], count)
    mined = read_table(negatives, RANKED)
    mined = mined.filter(pc.and_(pc.greater_equal(mined["rank"], window[0]), pc.less_equal(mined["rank"], window[1])))
    nq, nd = ordinals(mined["query"], query_ids), ordinals(mined["doc"], document_ids)
    fit = (nq >= 0) & (nd >= 0)
    return TrainingSet(np.flatnonzero(positives.counts), positives, lists_of(nq[fit], nd[fit], count), total)


def steps_of(data: TrainingSet, params: Round) -> int:
    """Optimizer steps of a round; the last batch of an epoch is filled from the next epoch, so every batch is full."""
    if params.steps is not None:
        return params.steps
    return max(1, round(params.epochs * len(data.queries) / params.batch_queries))


def draw_batch(data: TrainingSet, params: Round, step: int) -> Batch:
    """The batch of step `step`: queries in the order of a permutation per epoch, positives and negatives drawn uniformly.

    A query with fewer hard negatives than asked for repeats some; one with none gets random documents of the corpus.
    """
    size = min(params.batch_queries, len(data.queries))
    place = np.arange(step * size, (step + 1) * size)
    epochs = place // len(data.queries)
    order = {e: np.random.default_rng(draw_seed(params.seed, 1, e)).permutation(len(data.queries)) for e in np.unique(epochs).tolist()}
    queries = data.queries[[order[e][p % len(data.queries)] for e, p in zip(epochs.tolist(), place.tolist(), strict=True)]]
    rng = np.random.default_rng(draw_seed(params.seed, 2, step))
    first, count = data.positives.offsets[queries], data.positives.counts[queries]
    targets = data.positives.values[first + rng.integers(count)]
    hard_BH = _draw_negatives(data, queries, params.hard_negatives, rng)
    candidates = np.concatenate([targets, hard_BH.ravel()])
    documents, slots = np.unique(candidates, return_inverse=True)
    pairs_q = np.repeat(np.arange(size), count)
    pairs_d = np.concatenate([data.positives.values[f : f + c] for f, c in zip(first, count, strict=True)])
    positive = np.isin(np.arange(size)[:, None] * data.documents + candidates, pairs_q * data.documents + pairs_d)
    own = np.zeros_like(positive)
    own[:, size:] = np.repeat(np.eye(size, dtype=bool), params.hard_negatives, axis=1)
    return Batch(queries, documents, slots, positive, own)


def _draw_negatives(data: TrainingSet, queries: Ints, number: int, rng: np.random.Generator) -> Ints:
    """`number` hard negatives of each query, [B, H], without repetition where there are enough."""
    drawn = rng.integers(data.documents, size=(len(queries), number))
    if not len(data.negatives.values) or not number:
        return drawn
    for row, query in enumerate(queries):
        own = data.negatives.values[data.negatives.offsets[query] : data.negatives.offsets[query + 1]]
        if len(own):
            drawn[row] = rng.choice(own, size=number, replace=len(own) < number)
    return drawn
