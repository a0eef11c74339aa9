"""Validation while training: held-out training queries rank a fixed sample of the corpus.

They come from the train split, so dev and test stay unseen until a round is finished. V queries, U documents in the sample.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Towers
from tasks.core.plurals import counted
from tasks.core.stage.draws import HELD_OUT, draw_seed
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens
from tasks.train.batches import Bools, Floats, TrainingSet
from tasks.train.frozen import Frozen
from tasks.train.params import Round

DEPTH = 10  # of nDCG@10
MEASURE = f"validation/nDCG@{DEPTH}"


@dataclass(frozen=True)
class Sample:
    """Held-out queries, and the documents that they rank."""

    queries: Ints  # [V] query ordinals
    documents: Ints  # [U] document ordinals, distinct, sorted
    positive: Bools  # [V, U]

    @property
    def digest(self) -> str:
        """A digest of which queries are held out."""
        return sha256(np.sort(self.queries).astype("<i8").tobytes()).hexdigest()

    def describe(self, training: TrainingSet) -> str:
        """A line with the sizes of the sample, and the share of its positives that are also positives of `training`, the training set."""
        is_trained = np.zeros(training.documents, dtype=bool)
        for query in training.queries.tolist():
            is_trained[training.known.of(query)] = True
        share = (self.positive & is_trained[self.documents]).sum() / self.positive.sum()
        overlap = f"; {100 * share:.0f}% of their relevant documents are relevant to queries that may be trained on" if share else ""
        verb, rank = ("query is", "ranks") if len(self.queries) == 1 else ("queries are", "rank")
        return f"{len(self.queries):,} training {verb} held out, and {rank} {counted(len(self.documents), 'documents')}{overlap}"


def hold_out(data: TrainingSet, params: Round) -> tuple[TrainingSet, Sample]:
    """Split `data` into the queries to train on, and a validation sample of queries and documents. Drawn by params.split_seed alone.

    Documents are drawn. Every query that has a drawn document among its positives is held out or left out, so no training query has one.
    A held-out query's other positives may be trained on: otherwise hardly any query would be left where each has many. Queries with many
    positives are held out more often.
    The sample has the positives of its queries, then equal numbers of their best-ranked hard negatives and of random documents.
    UserError if no query is left to train on.
    """
    rng = np.random.default_rng(draw_seed(params.split_seed, HELD_OUT))
    place_O = rng.permutation(data.documents)
    first_N = np.array([place_O[data.known.of(query)].min() for query in data.queries.tolist()])
    order = np.argsort(first_N, kind="stable")
    last = first_N[order[min(params.validation_queries, len(order)) - 1]]
    training_queries, held_queries = data.queries[first_N > last], data.queries[order[: params.validation_queries]]
    if not len(training_queries):
        raise UserError(
            f"params.yaml: rounds: validation_queries {params.validation_queries}: found "
            f"{counted(len(data.queries), 'queries')}, expected some to remain for training; decrease it, or set "
            "validate_every: null"
        )
    documents = _documents(data, held_queries, params, rng)
    positive = np.stack([np.isin(documents, data.known.of(query)) for query in held_queries.tolist()])
    return replace(data, queries=training_queries), Sample(held_queries, documents, positive)


def trained_before(state: Mapping[str, Any], sample: Sample, params: Round, known: Ints | None = None) -> str:
    """A warning if the initial model was trained without holding the same queries out; otherwise "".

    `state` is that model's state.json: how many `queries` it was trained on, and the digest of those that it and every round before it
    have `held_out`, if they are the same. `known`: the queries that a champion's weights know (tasks.core.training.companions).
    """
    if known is not None and (count := int(np.isin(sample.queries, known).sum())):
        return (
            f"{params.init} knows {count:,} of the held-out queries, so the validation at step 0 is too good; set keep: last, or "
            "validate_every: null"
        )
    if not state.get("queries") or state.get("held_out") == sample.digest:
        return ""
    return (
        f"{params.init}, or a round before it, was trained without holding these queries out, so the validation at step 0 is too good; "
        "set validate_every in these rounds too, with the same validation_queries, split_seed, and positives"
    )


def _documents(data: TrainingSet, queries: Ints, params: Round, rng: np.random.Generator) -> Ints:
    chosen = np.zeros(data.documents, dtype=bool)
    for query in queries.tolist():
        chosen[data.known.of(query)] = True
    remaining = max(0, min(params.validation_documents, data.documents) - int(chosen.sum()))
    if params.hard and len(data.negatives.values):
        ranked = sorted((rank, document) for query in queries.tolist() for rank, document in enumerate(data.negatives.of(query).tolist()))
        best = dict.fromkeys(document for _, document in ranked if not chosen[document])
        chosen[list(best)[: remaining // 2]] = True
        remaining -= min(remaining // 2, len(best))
    chosen[rng.permutation(np.flatnonzero(~chosen))[:remaining]] = True
    return np.flatnonzero(chosen)


def ndcg(scores_VU: Floats, positive_VU: Bools) -> float:
    """Mean nDCG@10 with gains of 0 and 1, as trec_eval's ndcg_cut.10. Equal scores rank in the order of documents.

    It does not use tasks.core.metrics, because an edit there would then re-run every training.
    """
    order_VK = np.argsort(-scores_VU, axis=1, kind="stable")[:, :DEPTH]
    discount_K = 1 / np.log2(np.arange(2, order_VK.shape[1] + 2))
    gain_V = np.take_along_axis(positive_VU, order_VK, axis=1) @ discount_K
    ideal_V = np.concatenate([[0.0], discount_K.cumsum()])[positive_VU.sum(axis=1).clip(max=len(discount_K))]
    return float((gain_V / ideal_V).mean())


def make_validation(
    towers: Towers, queries: Tokens, documents: Tokens, sample: Sample, device: torch.device, dtype: torch.dtype
) -> Callable[[], float]:
    """Make the function that measures nDCG@10 of the current towers on the sample. It draws nothing and changes nothing."""

    def measure() -> float:
        frozen = Frozen.of(towers, queries, documents, device, dtype)
        return ndcg(frozen.scores(sample.queries, sample.documents), sample.positive)

    return measure
