"""The batch of a step: queries, each with a positive and some negatives. Every draw is a function of (seed, epoch) or (seed, step)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.core.stage.draws import batch_places, draw_seed
from tasks.core.stage.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import DocumentLists, lists_of, ranked_lists, relevant_pairs
from tasks.core.tables.parquet import count_rows
from tasks.reranker.params import Reranker

Group = tuple[int, list[int]]  # a query, and its documents, the positive first


@dataclass(frozen=True)
class Groups:
    """Ordinals of the queries that have both positives and negatives, and the lists of those."""

    queries: Ints
    positives: DocumentLists
    negatives: DocumentLists


def read_groups(corpus: Path, negatives: Path, window: tuple[int, int], scratch: Path) -> Groups:
    """Positives and negatives of the training queries; UserError if no query has both."""
    queries, documents = corpus / "queries" / "train.parquet", corpus / "documents.parquet"
    positives = lists_of(*relevant_pairs(corpus / "qrels" / "train.parquet", queries, documents), count_rows(queries))
    hard = ranked_lists(negatives, queries, documents, window, scratch)
    both = np.flatnonzero((positives.counts > 0) & (hard.counts > 0))
    if not len(both):
        raise UserError(
            f"{negatives}: no training query has both a positive and a negative at ranks {window[0]} to {window[1]}; change window "
            "or negatives"
        )
    return Groups(both, positives, hard)


def draw_groups(groups: Groups, params: Reranker, step: int) -> list[Group]:
    """The step's queries, each with its documents, the positive first; fewer negatives than requested are repeated."""
    total, size = len(groups.queries), min(params.batch_queries, len(groups.queries))
    rng = np.random.default_rng(draw_seed(params.seed, 2, step))
    drawn = []
    for query in groups.queries[batch_places(total, size, params.seed, step)].tolist():
        positives, negatives = groups.positives.of(query), groups.negatives.of(query)
        hard = rng.choice(negatives, size=params.hard_negatives, replace=len(negatives) < params.hard_negatives)
        drawn.append((query, [int(rng.choice(positives)), *hard.tolist()]))
    return drawn
