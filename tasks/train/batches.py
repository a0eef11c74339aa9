"""The batch of a training step: queries, one positive and the hard negatives of each, and a mask of all known positives.

B queries, H hard negatives per query, S = B + B H candidate slots, U distinct documents in them, G = 1 + H slots in a query's own group.
Every draw is a function of (seed, epoch) or (seed, step) alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.stage.draws import SAMPLING, SUBSET, batch_places, draw_seed
from tasks.core.stage.references import without_digests
from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tables.judgments import DocumentLists, known_pairs, lists_of, ranked_lists, relevant_pairs, with_same_texts
from tasks.core.tables.parquet import count_rows, read_table
from tasks.core.tables.schemas import RANKED
from tasks.core.tables.weights import WEIGHTS
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.same_texts import same_texts
from tasks.core.training.loop import Schedule
from tasks.train.params import Round

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class TrainingSet:
    """The queries that have at least one positive, with their positives and their hard negatives, best first.

    `known`: the documents that never count as negatives of a query, which are its positives and all documents with the text of one.
    `pool`: the documents that may be hard negatives; None: all may.
    """

    queries: Ints  # [N] query ordinals
    positives: DocumentLists
    negatives: DocumentLists
    documents: int
    known: DocumentLists
    pool: Ints | None = None
    weights: Floats | None = None  # of the positives, parallel to positives.values; None: all weigh the same


@dataclass(frozen=True)
class Batch:
    """One step. `slots` index into `documents`."""

    queries: Ints  # [B] query ordinals
    documents: Ints  # [U] document ordinals, distinct
    slots: Ints  # [S]
    positive: Bools  # [B, S] the query's known positives and documents with their texts; includes its own target
    own: Bools  # [B, S] the query's own hard negatives
    scores: Floats  # [B, G] of the query's own group, from the table of negatives; NaN where the table has none
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
    """Read the judgments and the negatives of the training queries. UserError if there is nothing to train on.

    `negatives` is a table. If its stage also wrote positives.parquet beside it, that has the scores of known positives. With
    positive_ranks, `qrels` is not read.
    """
    query_ids, document_ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    if params.positive_ranks is not None:
        q, d, ranked_scores = _top_ranks(negatives, query_ids, document_ids, params.positive_ranks, scratch)
    else:
        q, d = relevant_pairs(qrels, query_ids, document_ids)
    if not len(q):
        relation = "has a relevant document" if params.positive_ranks is None else f"is listed by {params.negatives}"
        raise UserError(f"{qrels}: no training query {relation}; add a train split to the data set, or set steps: 0 in every round")
    total = count_rows(document_ids)
    positives_path = negatives.with_name("positives.parquet")
    scores = _positive_scores(positives_path, q, d, query_ids, document_ids, total) if params.positive_ranks is None else ranked_scores
    positives = lists_of(q, d, count_rows(query_ids), scores)
    hard = ranked_lists(negatives, query_ids, document_ids, params.window, scratch)
    known = lists_of(*with_same_texts(q, d, same_texts(queries, q), same_texts(documents, d)), count_rows(query_ids))
    return TrainingSet(np.flatnonzero(positives.counts), positives, hard, total, known)


def among_positives(data: TrainingSet, queries: Tokens, documents: Tokens, *, negatives: Path, params: Round, scratch: Path) -> TrainingSet:
    """`data` with hard negatives among the positives of its `queries` alone, if params.hard_negatives_from asks for it.

    It comes after queries are held out or not sampled: what is relevant only to those is no negative. `negatives` is the table of
    `read_training_set`, which is read again.
    """
    if params.hard_negatives_from != "positives":
        return data
    places = concat_ranges(data.positives.offsets[data.queries], data.positives.counts[data.queries])
    pool = np.unique(data.positives.values[places])
    allowed = np.zeros(data.documents, dtype=bool)
    allowed[pool] = True
    ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    return replace(data, negatives=ranked_lists(negatives, *ids, params.window, scratch, allowed), pool=pool)


def with_weights(data: TrainingSet, queries: Tokens, documents: Tokens, qrels: Path, *, weights: Path) -> TrainingSet:
    """Add weights of positives to `data`, from a table of pairs (schema WEIGHTS); a pair that is not listed gets 1.

    If no pair of the table is known here, `data` is returned unchanged.
    """
    ids = queries.folder / "ids.parquet", documents.folder / "ids.parquet"
    q, d, values = _known_values(read_table(weights, WEIGHTS), "weight", *ids)
    if not len(q):
        return data
    judged_q, judged_d = relevant_pairs(qrels, *ids)
    weighted = _look_up(q * data.documents + d, values, judged_q * data.documents + judged_d, 1)
    return replace(data, weights=lists_of(judged_q, judged_d, count_rows(ids[0]), weighted).scores)


def sampled_queries(data: TrainingSet, params: Round) -> TrainingSet:
    """Sample params.train_queries or params.train_share of the queries of `data`, in their original order; keep all if neither is set.

    The sample is the start of one permutation drawn by params.split_seed. So under one seed a smaller sample is a subset of a larger one,
    whichever parameter sets the size. A share is rounded to whole queries, at least one. UserError if there are too few queries.
    """
    if params.train_queries is None and params.train_share == 1:
        return data
    wanted = params.train_queries or max(1, round(params.train_share * len(data.queries)))
    if wanted > len(data.queries):
        raise UserError(
            f"params.yaml: rounds: train_queries {wanted:,}: found {len(data.queries):,} training queries with a relevant "
            "document, expected at least that many; decrease it, or set null for all"
        )
    drawn = np.random.default_rng(draw_seed(params.split_seed, SUBSET)).permutation(len(data.queries))[:wanted]
    return replace(data, queries=data.queries[np.sort(drawn)])


def _top_ranks(negatives: Path, query_ids: Path, document_ids: Path, count: int, scratch: Path) -> tuple[Ints, Ints, Floats]:
    """The first `count` ranks of each query, as (queries, documents, scores).

    The ranking merges a table of negatives with the positives.parquet beside it.
    """
    listed = ranked_lists(negatives, query_ids, document_ids, (1, count), scratch)
    known_q, known_d, known_scores = _known_values(
        read_table(negatives.with_name("positives.parquet"), RANKED), "score", query_ids, document_ids
    )
    assert listed.scores is not None, "a table of negatives has scores"
    q = np.concatenate([known_q, np.repeat(np.arange(len(listed.counts)), listed.counts)])
    d = np.concatenate([known_d, listed.values])
    scores = np.concatenate([known_scores, listed.scores])
    order = np.lexsort((-scores, q))  # stable: of equal scores, known positives come first
    q, d, scores = q[order], d[order], scores[order]
    top = np.arange(len(q)) - np.searchsorted(q, q) < count
    return q[top], d[top], scores[top]


def _positive_scores(path: Path, queries: Ints, documents: Ints, query_ids: Path, document_ids: Path, total: int) -> Floats | None:
    """The score of each (query, document) pair in the table of positives at `path`: NaN if not listed; None if there is no table."""
    if not path.exists():
        return None
    q, d, values = _known_values(read_table(path, RANKED), "score", query_ids, document_ids)
    return _look_up(q * total + d, values, queries * total + documents, np.nan)


def _known_values(table: pa.Table, column: str, query_ids: Path, document_ids: Path) -> tuple[Ints, Ints, Floats]:
    """The pairs of `table` whose ids are both known, as (queries, documents), and their values in `column`."""
    q, d, known = known_pairs(table, query_ids, document_ids)
    return q, d, table[column].to_numpy()[known]


def _look_up(keys: Ints, values: Floats, wanted: Ints, missing: float) -> Floats:
    """The value of each key of `wanted`: that of the first of `keys` that equals it, or `missing`."""
    known_keys, first = np.unique(keys, return_index=True)
    if not len(known_keys):
        return np.full(len(wanted), missing, dtype=np.float32)
    place = np.searchsorted(known_keys, wanted).clip(max=len(known_keys) - 1)
    return np.where(known_keys[place] == wanted, values[first][place], np.float32(missing))


def check_training_set(data: TrainingSet, params: Round) -> str:
    """Check that there are negatives to train with, and return one line that says how many.

    UserError if there are none (an empty table, or a single query without hard negatives), if there are too few, or if the sampling or the
    loss uses scores and the table has none.
    """
    masked = len(data.known.values) - len(data.positives.values)
    notes = f"; {counted(masked, 'pairs masked for having the texts of known positives')}" if masked else ""
    if params.positive_ranks is not None:
        notes += f"; positives: the first {params.positive_ranks} ranks of {params.negatives}"
    if data.weights is not None:
        notes += f"; weights of positives from {data.weights.min():.3g} to {data.weights.max():.3g}"
    if params.hard == 0 and len(data.queries) == 1:
        raise UserError(
            "found 1 training query and no hard_negatives, so there are no negatives; increase hard_negatives, or add training queries"
        )
    if params.hard == 0 or params.negatives == "random":
        return f"{counted(len(data.queries), 'queries')}, hard negatives: {params.negatives if params.hard else 'none'}{notes}"
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
        setting = f"loss {without_digests(params.loss)}" if params.distilled else "sampling simans"
        raise UserError(f"negatives {params.negatives}: no scores of positives, which {setting} requires; name a mine or a teacher")
    if counts.max() < params.hard:
        raise UserError(
            f"negatives {params.negatives}: found at most {counts.max()} per query at ranks {params.window[0]} to {params.window[1]}, "
            f"expected hard_negatives ({params.hard}) for at least one query; {_fewer(data, params, int(counts.max()))}"
        )
    short, lone = int(((counts > 0) & (counts < params.hard)).sum()), int((counts == 0).sum())
    return (
        f"{counted(len(counts), 'queries')}, hard negatives: {counts.mean():.1f} per query to draw from; "
        f"{short:,} {'has' if short == 1 else 'have'} fewer than {params.hard} (repeated), {lone:,} none (random documents instead){notes}"
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
    """A warning if the round starts with the queries that its initial model was trained on, although others are left; otherwise "".

    `state` is that model's state.json: its `seed`, how many `queries` were drawn, and `of` how many.
    """
    drawn, total = state.get("queries", 0), len(data.queries)
    if (
        params.optimizer_from == "continue"
        or not 0 < drawn <= total - params.batch_queries
        or (state["seed"], state["of"]) != (params.seed, total)
    ):
        return ""
    return f"the first {drawn:,} of {total:,} queries are those that {params.init} was trained on (seed {params.seed}); set another seed"


def steps_of(data: TrainingSet, params: Round) -> int:
    """The number of optimizer steps of a round. The last batch of an epoch is filled from the next epoch, so every batch is full."""
    if params.steps is not None:
        return params.steps
    return max(1, round(params.epochs * len(data.queries) / min(params.batch_queries, len(data.queries))))


def schedule_of(steps: int, before: int, params: Round) -> Schedule:
    """The part of the lr schedule that a round of `steps` uses, after `before` earlier steps. UserError if the schedule is too short."""
    total = params.schedule_steps or steps
    if before + steps > total:
        raise UserError(
            f"params.yaml: rounds: {before} steps done and {steps} to do exceed schedule_steps {total}; "
            "set it to the steps of the whole chain, the same in each of its rounds"
        )
    return Schedule(steps, params.warmup, params.clip, before, total)


def draw_batch(data: TrainingSet, params: Round, step: int) -> Batch:
    """Draw the batch of step `step`. Queries follow one permutation per epoch; each gets one of its positives, drawn uniformly.

    Hard negatives are drawn as params.sampling says. A query with fewer than requested repeats some. A query with none gets
    random documents of the corpus (or of the pool), and so does every query if params.negatives is random.
    """
    size, hard = min(params.batch_queries, len(data.queries)), params.hard
    queries = data.queries[batch_places(len(data.queries), size, params.seed, step)]
    rng = np.random.default_rng(draw_seed(params.seed, SAMPLING, step))
    first = data.positives.offsets[queries]
    count = data.positives.offsets[queries + 1] - first
    places = first + rng.integers(count)
    targets = _draw_at(data.positives, places)
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


def _draw_at(lists: DocumentLists, places: Ints) -> _Draw:
    scores = np.full(places.shape, np.nan, dtype=np.float32) if lists.scores is None else lists.scores[places]
    return _Draw(lists.values[places], scores)


def _draw_negatives(data: TrainingSet, queries: Ints, positive_B: Floats, params: Round, rng: np.random.Generator) -> _Draw:
    """Draw the hard negatives of each query, [B, H]. `positive_B`: the scores of the positives drawn before."""
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
            drawn = _draw_at(data.negatives, first + _places(count, number, weights, params.sampling, rng))
            listed = np.ones(number, dtype=bool) if data.negatives.scores is None else ~np.isnan(drawn.scores)  # NaN: a mix's random slot
            documents[row, listed], scores[row] = drawn.documents[listed], drawn.scores
    return _Draw(documents, scores)


def _log_weights(negatives: DocumentLists, first: int, count: int, positive: float, params: Round) -> Floats | None:
    """SimANS (Zhou et al., arXiv 2210.11773, Eq. 3): log p = -a (s- - s+ - b)^2 up to a constant. None: sample uniformly (no scores)."""
    if params.sampling != "simans" or negatives.scores is None or not np.isfinite(positive):
        return None
    distance = negatives.scores[first : first + count].astype(np.float64) - positive - params.simans_b
    weights: Floats = (-params.simans_a * distance**2).astype(np.float32)
    return weights


def _places(count: int, number: int, log_weights: Floats | None, sampling: str, rng: np.random.Generator) -> Ints:
    """Draw `number` of 0..count-1, without replacement if there are enough. Otherwise some repeat: at random if uniform, else in turn."""
    if sampling == "top":
        return np.arange(number) % count
    if log_weights is None:
        drawn: Ints = rng.choice(count, size=number, replace=count < number)
        return drawn
    keys = log_weights + rng.gumbel(size=count)  # Gumbel top-k: a weighted sample without replacement, without underflow
    return np.argsort(-keys, kind="stable")[np.arange(number) % count]
