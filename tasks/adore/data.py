"""The queries of a query-side training: their order, positives, and given negatives. Draws are functions of (seed, epoch or step)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.adore.params import QuerySide
from tasks.core.errors import UserError
from tasks.core.stage.draws import batch_places
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import DocumentLists, graded_pairs, grades_of, lists_of, ranked_lists, with_same_texts
from tasks.core.tables.parquet import count_rows
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.same_texts import same_texts


@dataclass(frozen=True)
class Data:
    """The queries [N] that have at least one positive, all their positives, and given negatives, best first.

    `known`: the positives, and all documents with the text of one. The scores of `positives` and `known` are grades.
    """

    queries: Ints
    positives: DocumentLists
    negatives: DocumentLists | None
    documents: int
    known: DocumentLists


def read_data(queries: Tokens, documents: Tokens, qrels: Path, negatives: Path | None, depth: int, scratch: Path) -> Data:
    """Read the judgments of the training queries, and the `depth` best given negatives. UserError if there is nothing to train on."""
    query_ids, document_ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    q, d, grades = graded_pairs(qrels, query_ids, document_ids)
    positives = lists_of(q, d, count_rows(query_ids), grades.astype(np.float32))
    if not len(positives.values):
        raise UserError(
            f"{qrels}: no training query has a relevant document; add a train split to the data set, or remove the entry of adore"
        )
    negative_lists = None
    if negatives is not None:
        negative_lists = ranked_lists(negatives, query_ids, document_ids, (1, depth), scratch)
        if not len(negative_lists.values):
            raise UserError(f"{negatives}: no negatives at ranks 1 to {depth}; for random ones set lists: random")
    duplicates = same_texts(queries, q), same_texts(documents, d)
    pairs = with_same_texts(q, d, *duplicates)
    known = lists_of(*pairs, count_rows(query_ids), grades_of(pairs, (q, d), grades, *duplicates).astype(np.float32))
    return Data(np.flatnonzero(positives.counts), positives, negative_lists, count_rows(document_ids), known)


def steps_of(data: Data, params: QuerySide) -> int:
    """The number of optimizer steps. The last batch of an epoch is filled from the next epoch, so every batch is full."""
    return params.steps or max(1, round(params.epochs * len(data.queries) / min(params.batch_queries, len(data.queries))))


def batch_of(data: Data, params: QuerySide, step: int) -> Ints:
    """The queries of step `step`, [B]: a new permutation each epoch."""
    total = len(data.queries)
    return data.queries[batch_places(total, min(params.batch_queries, total), params.seed, step)]
