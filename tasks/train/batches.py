"""The batch of a training step: queries, a positive and hard negatives of each, and all known positives.

B queries, H hard negatives per query, S = B + B H candidate slots, U distinct documents among them, G = 1 + H: a query's own group.
Every draw is a function of (seed, epoch) or (seed, step) alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.core.stage.draws import batch_places, draw_seed
from tasks.core.stage.errors import UserError, counted
from tasks.core.stage.references import written
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import DocumentLists, known_pairs, lists_of, ranked_lists, relevant_pairs, with_same_texts
from tasks.core.tables.parquet import count_rows, read_table
from tasks.core.tables.schemas import RANKED
from tasks.core.tables.weights import WEIGHTS
from tasks.core.text.same_texts import same_texts
from tasks.core.text.tokens import Tokens
from tasks.core.training.loop import Schedule
from tasks.train.params import Round

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class TrainingSet:
    """Queries with at least one positive: their rows, their positives and their hard negatives, best first.

    `known` are the documents that are no negatives: positives, and all that have the same text as one. `pool` are the documents
    that may be hard negatives, where not all may.
    """

    queries: Ints  # [N] query ordinals
    positives: DocumentLists
    negatives: DocumentLists
    documents: int
    known: DocumentLists
    pool: Ints | None = None
    weights: Floats | None = None  # of the positives, parallel to their values; None: all weigh the same


@dataclass(frozen=True)
class Batch:
    """One step. `slots` index into `documents`."""

    queries: Ints  # [B] query ordinals
    documents: Ints  # [U] document ordinals, distinct
    slots: Ints  # [S]
    positive: Bools  # [B, S] known positives of the query and documents of their texts, its target among them
    own: Bools  # [B, S] its own hard negatives
    scores: Floats  # [B, G] of its own group in the table of negatives; NaN where that has none
    weights: Floats | None = None  # [B] of each query's drawn positive


@dataclass(frozen=True)
class _Draw:
    """Documents drawn for some queries, and their scores in the table (NaN: none)."""

    documents: Ints
    scores: Floats


def read_training_set(
    queries: Tokens,
    documents: Tokens,
    qrels: Path,
    negatives: Path,
    params: Round,
    scratch: Path,
) -> TrainingSet:
    """Judgements and negatives of the training queries; UserError if there is nothing to train on.

    `negatives` is a table; positives.parquet beside it has the scores of known positives, if its stage wrote them. With positive_ranks,
    `qrels` are not read.
    """
    query_ids, document_ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    if params.positive_ranks is not None:
        q, d, ranked = _top_ranks(negatives, query_ids, document_ids, params.positive_ranks, scratch)
    else:
        q, d = relevant_pairs(qrels, query_ids, document_ids)
    if not len(q):
        found = "has a relevant document" if params.positive_ranks is None else f"is listed by {params.negatives}"
        raise UserError(f"{qrels}: no training query {found}; add a train split to the data set, or set steps: 0 in every round")
    total = count_rows(document_ids)
    beside = negatives.with_name("positives.parquet")
    scores = _positive_scores(beside, q, d, query_ids, document_ids, total) if params.positive_ranks is None else ranked
    positives = lists_of(q, d, count_rows(query_ids), scores)
    among = _mask_of(d, total) if params.hard_negatives_from == "positives" else None
    hard = ranked_lists(negatives, query_ids, document_ids, params.window, scratch, among)
    known = lists_of(*with_same_texts(q, d, same_texts(queries, q), same_texts(documents, d)), count_rows(query_ids))
    pool = None if among is None else np.flatnonzero(among)
    return TrainingSet(np.flatnonzero(positives.counts), positives, hard, total, known, pool)


def _mask_of(documents: Ints, total: int) -> Bools:
    mask = np.zeros(total, dtype=bool)
    mask[documents] = True
    return mask


def with_weights(data: TrainingSet, queries: Tokens, documents: Tokens, qrels: Path, *, weights: Path) -> TrainingSet:
    """`data` with the weights of its positives by a table of pairs (schema WEIGHTS), 1 where it has none; as it is if it has no pair."""
    table = read_table(weights, WEIGHTS)
    query_ids, document_ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    q, d, known = known_pairs(table, query_ids, document_ids)
    if not len(q):
        return data
    keys, first = np.unique(q * data.documents + d, return_index=True)
    judged_q, judged_d = relevant_pairs(qrels, query_ids, document_ids)
    wanted = judged_q * data.documents + judged_d
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    found = table["weight"].to_numpy()[known][first][place]
    weighted = np.where(keys[place] == wanted, found, np.float32(1))
    return replace(data, weights=lists_of(judged_q, judged_d, count_rows(query_ids), weighted).scores)


def sampled_queries(data: TrainingSet, params: Round) -> TrainingSet:
    """`data` with params.train_queries or params.train_share of its queries, by params.split_seed, in their original order; or all.

    They are the first of one permutation, so under one seed a smaller sample is a subset of a larger one, whichever of the two says how
    large it is. A share is rounded to whole queries, one at least. UserError if there are too few.
    """
    if params.train_queries is None and params.train_share == 1:
        return data
    wanted = params.train_queries or max(1, round(params.train_share * len(data.queries)))
    if wanted > len(data.queries):
        raise UserError(
            f"params.yaml: rounds: train_queries {wanted:,}: found {len(data.queries):,} training queries with a relevant "
            "document, expected at least that many; decrease it, or set null for all"
        )
    drawn = np.random.default_rng(draw_seed(params.split_seed, 4)).permutation(len(data.queries))[:wanted]
    return replace(data, queries=data.queries[np.sort(drawn)])


def _top_ranks(negatives: Path, query_ids: Path, document_ids: Path, count: int, scratch: Path) -> tuple[Ints, Ints, Floats]:
    """Query, document and score of the first `count` ranks of a table of negatives and positives.parquet beside it, as one list."""
    listed = ranked_lists(negatives, query_ids, document_ids, (1, count), scratch)
    table = read_table(negatives.with_name("positives.parquet"), RANKED)
    known_q, known_d, known = known_pairs(table, query_ids, document_ids)
    assert listed.scores is not None, "a table of negatives has scores"
    q = np.concatenate([known_q, np.repeat(np.arange(len(listed.counts)), listed.counts)])
    d = np.concatenate([known_d, listed.values])
    scores = np.concatenate([table["score"].to_numpy()[known], listed.scores])
    order = np.lexsort((-scores, q))  # stable: a known positive comes first of equal scores
    q, d, scores = q[order], d[order], scores[order]
    top = np.arange(len(q)) - np.searchsorted(q, q) < count
    return q[top], d[top], scores[top]


def _positive_scores(path: Path, queries: Ints, documents: Ints, query_ids: Path, document_ids: Path, total: int) -> Floats | None:
    """The score of each pair (query, document) in a table of positives, NaN if it is not listed; None without such a table."""
    if not path.exists():
        return None
    table = read_table(path, RANKED)
    q, d, known = known_pairs(table, query_ids, document_ids)
    keys, first = np.unique(q * total + d, return_index=True)
    scores = np.full(len(queries), np.nan, dtype=np.float32)
    if len(keys):
        wanted = queries * total + documents
        place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        scores = np.where(keys[place] == wanted, table["score"].to_numpy()[known][first][place], scores)
    return scores


def check_training_set(data: TrainingSet, params: Round) -> str:
    """One line on how many negatives the queries have; UserError if there are none: a table is empty, or one query trains alone.

    Scores are required if sampling or loss uses them.
    """
    more = len(data.known.values) - len(data.positives.values)
    alike = f"; {counted(more, 'pairs masked for having the texts of known positives')}" if more else ""
    if params.positive_ranks is not None:
        alike += f"; positives: the first {params.positive_ranks} ranks of {params.negatives}"
    if data.weights is not None:
        alike += f"; weights of positives from {data.weights.min():.3g} to {data.weights.max():.3g}"
    if params.hard == 0 and len(data.queries) == 1:
        raise UserError(
            "found 1 training query and no hard_negatives, so there are no negatives; increase hard_negatives, or add training queries"
        )
    if params.hard == 0 or params.negatives == "random":
        return f"{counted(len(data.queries), 'queries')}, hard negatives: {params.negatives if params.hard else 'none'}{alike}"
    counts = data.negatives.counts[data.queries]
    if not counts.any():
        others = ", ".join(name for name in ("random", "bm25", "none") if name != params.negatives)
        remedies = [f"other negatives ({others})", *_wider(data, params)]
        remedies += ["hard_negatives_from: all"] if params.hard_negatives_from != "all" else []
        raise UserError(
            f"negatives {params.negatives}: none of {len(counts):,} queries has one at ranks {params.window[0]} to {params.window[1]} of "
            f"{counted(data.documents, 'documents')}; choose {' or '.join(remedies)}"
        )
    if (params.distilled or params.sampling == "simans") and (
        data.positives.scores is None or not np.isfinite(data.positives.scores).any()
    ):
        wish = f"loss {written(params.loss)}" if params.distilled else "sampling simans"
        raise UserError(f"negatives {params.negatives}: no scores of positives, which {wish} requires; name a mine or a teacher")
    if counts.max() < params.hard:
        raise UserError(
            f"negatives {params.negatives}: found at most {counts.max()} per query at ranks {params.window[0]} to {params.window[1]}, "
            f"expected hard_negatives ({params.hard}) for at least one query; {_fewer(data, params, int(counts.max()))}"
        )
    short, lone = int(((counts > 0) & (counts < params.hard)).sum()), int((counts == 0).sum())
    return (
        f"{counted(len(counts), 'queries')}, hard negatives: {counts.mean():.1f} a query to draw from; "
        f"{short:,} {'has' if short == 1 else 'have'} fewer than {params.hard} (theirs repeat), {lone:,} none (random documents){alike}"
    )


def _wider(data: TrainingSet, params: Round) -> list[str]:
    """A wider window, where it can have more documents: not where it has every rank of the corpus."""
    return ["a wider window"] if params.window[0] > 1 or params.window[1] < data.documents else []


def _fewer(data: TrainingSet, params: Round, most: int) -> str:
    """How to train where no query has more than `most` hard negatives. Another source has no more than the corpus has."""
    fewer = f"decrease hard_negatives to {most}"
    others = data.documents - int(data.known.counts[data.queries].min())  # at most, of a query
    if others < params.hard:
        return f"{fewer}: the corpus has only {counted(data.documents, 'documents')}, known positives included"
    return " or ".join([f"{fewer}, or use a deeper or less filtered source", *_wider(data, params)])


def seen_before(state: Mapping[str, int], data: TrainingSet, params: Round) -> str:
    """A warning if a round begins with the same queries as its initial model was trained on, although others are left.

    `state` is state.json of that model: `seed`, `queries` drawn, `of` how many. Otherwise empty.
    """
    drawn, total = state.get("queries", 0), len(data.queries)
    if (
        params.optimizer_from == "continue"
        or not 0 < drawn <= total - params.batch_queries
        or (state["seed"], state["of"]) != (params.seed, total)
    ):
        return ""
    return f"the same {drawn:,} of {total:,} queries come first as in {params.init} (seed {params.seed}); another seed draws others"


def steps_of(data: TrainingSet, params: Round) -> int:
    """Optimizer steps of a round; the last batch of an epoch is filled from the next epoch, so every batch is full."""
    if params.steps is not None:
        return params.steps
    return max(1, round(params.epochs * len(data.queries) / min(params.batch_queries, len(data.queries))))


def schedule_of(steps: int, before: int, params: Round) -> Schedule:
    """The part of the lr schedule that a round trains on after `before` steps; UserError if the schedule ends too early."""
    total = params.schedule_steps or steps
    if before + steps > total:
        raise UserError(
            f"params.yaml: rounds: {before} steps done and {steps} to do exceed schedule_steps {total}; "
            "set it to the steps of the whole chain, the same in each of its rounds"
        )
    return Schedule(steps, params.warmup, params.clip, before, total)


def draw_batch(data: TrainingSet, params: Round, step: int) -> Batch:
    """The batch of step `step`: queries in the order of a permutation per epoch, a positive of each drawn uniformly.

    Hard negatives are drawn as params.sampling says. A query with fewer than requested repeats some; one with none gets
    random documents of the corpus (or of the pool), as does every query if params.negatives is random.
    """
    size, hard = min(params.batch_queries, len(data.queries)), params.hard
    queries = data.queries[batch_places(len(data.queries), size, params.seed, step)]
    rng = np.random.default_rng(draw_seed(params.seed, 2, step))
    first = data.positives.offsets[queries]
    count = data.positives.offsets[queries + 1] - first
    places = first + rng.integers(count)
    targets = _taken(data.positives, places)
    drawn = _draw_negatives(data, queries, targets.scores, params, rng)
    candidates = np.concatenate([targets.documents, drawn.documents.ravel()])
    documents, slots = np.unique(candidates, return_inverse=True)
    known = [data.known.of(query) for query in queries.tolist()]
    pairs_q, pairs_d = np.repeat(np.arange(size), list(map(len, known))), np.concatenate(known)
    positive = np.isin(np.arange(size)[:, None] * data.documents + candidates, pairs_q * data.documents + pairs_d)
    own = np.zeros_like(positive)
    own[:, size:] = np.repeat(np.eye(size, dtype=bool), hard, axis=1)
    scores = np.concatenate([targets.scores[:, None], drawn.scores], axis=1)
    return Batch(queries, documents, slots, positive, own, scores, None if data.weights is None else data.weights[places])


def _taken(lists: DocumentLists, places: Ints) -> _Draw:
    scores = np.full(places.shape, np.nan, dtype=np.float32) if lists.scores is None else lists.scores[places]
    return _Draw(lists.values[places], scores)


def _draw_negatives(data: TrainingSet, queries: Ints, positive_B: Floats, params: Round, rng: np.random.Generator) -> _Draw:
    """Hard negatives of each query, [B, H]; `positive_B` are the scores of the drawn positives."""
    number = params.hard
    documents = rng.integers(data.documents if data.pool is None else len(data.pool), size=(len(queries), number))
    documents = documents if data.pool is None else data.pool[documents]
    scores = np.full(documents.shape, np.nan, dtype=np.float32)
    if params.negatives == "random" or not len(data.negatives.values) or not number:
        return _Draw(documents, scores)
    for row, query in enumerate(queries):
        first, end = data.negatives.offsets[query : query + 2].tolist()
        count = end - first
        if count:
            weights = _log_weights(data.negatives, first, count, float(positive_B[row]), params)
            own = _taken(data.negatives, first + _places(count, number, weights, params.sampling, rng))
            named = np.ones(number, dtype=bool) if data.negatives.scores is None else ~np.isnan(own.scores)  # else random, of a mix
            documents[row, named], scores[row] = own.documents[named], own.scores
    return _Draw(documents, scores)


def _log_weights(negatives: DocumentLists, first: int, count: int, positive: float, params: Round) -> Floats | None:
    """SimANS (Zhou et al., arXiv 2210.11773, Eq. 3): log p = -a (s- - s+ - b)^2 up to a constant; None: uniform, as without scores."""
    if params.sampling != "simans" or negatives.scores is None or not np.isfinite(positive):
        return None
    distance = negatives.scores[first : first + count].astype(np.float64) - positive - params.simans_b
    weights: Floats = (-params.simans_a * distance**2).astype(np.float32)
    return weights


def _places(count: int, number: int, log_weights: Floats | None, sampling: str, rng: np.random.Generator) -> Ints:
    """`number` of 0..count-1, without replacement if there are enough; otherwise repeated, at random (uniform) or in turn."""
    if sampling == "top":
        return np.arange(number) % count
    if log_weights is None:
        drawn: Ints = rng.choice(count, size=number, replace=count < number)
        return drawn
    keys = log_weights + rng.gumbel(size=count)  # the largest keys are a weighted sample without replacement; no weight underflows
    return np.argsort(-keys, kind="stable")[np.arange(number) % count]
