"""The records of a round, step by step: the batches that tasks.train.step draws, and the role of each record in the loss."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tasks.core.tokens.folder import open_tokens
from tasks.core.training.exposure import HARD, HELD_DOCUMENT, HELD_QUERY, IN_BATCH, POSITIVE, QUERY, Replay, Roles
from tasks.core.training.replay import replayed_from
from tasks.train.batches import Batch, draw_batch, read_training_set, sampled_queries, steps_of
from tasks.train.params import Round
from tasks.train.validation import hold_out


def roles_of(batch: Batch, params: Round) -> Roles:
    """The records of one step by role.

    Negatives are candidates only: `guide` and `hardest` choose among them by the model's weights at that step. A distillation without
    nll_weight compares only a query's own documents.
    """
    negative_BS = ~batch.positive
    hard_S = (negative_BS & batch.own).any(0)
    others = params.in_batch and (not params.distilled or params.nll_weight > 0)
    other_S = (negative_BS & ~batch.own).any(0) & others
    documents_S = batch.documents[batch.slots]
    return {
        QUERY: batch.queries,
        POSITIVE: documents_S[: len(batch.queries)],
        HARD: documents_S[hard_S],
        IN_BATCH: documents_S[other_S],
    }


def replay(paths: Mapping[str, Path], params: Round, scratch: Path, behind: int = 0, trained_steps: int | None = None) -> Replay:
    """Replay the steps of a round.

    `paths` are the stage's arguments. `behind`: steps of earlier rounds, counted if this round continues them. `trained_steps`: those that
    the saved weights were trained for; None: all that params ask for.
    """
    documents, queries = open_tokens(paths["tokens"] / "documents"), open_tokens(paths["tokens"] / "queries" / "train")
    ids = documents.folder / "ids.parquet", queries.folder / "ids.parquet"
    if params.steps == 0:
        return Replay(*ids, 0, iter(()))
    qrels, table = paths["corpus"] / "qrels" / "train.parquet", paths["negatives"] / "train.parquet"
    everything = read_training_set(queries, documents, qrels, table, params, scratch)
    share, seed = params.replay, params.split_seed
    queries_N, _ = replayed_from(paths.get("init-state"), everything.queries, ids[1], share=share, seed=seed, key="rounds")
    data = replace(everything, queries=queries_N)
    held_out: Roles = {}
    if params.validate_every:
        data, sample = hold_out(data, params)
        held_out = {HELD_QUERY: sample.queries, HELD_DOCUMENT: sample.documents}
    data = sampled_queries(data, params)
    before = behind if params.optimizer_from == "continue" else 0
    total = steps_of(data, params) if trained_steps is None else trained_steps

    def steps() -> Iterator[tuple[int, Roles]]:
        for step in range(total):
            yield step, roles_of(draw_batch(data, params, before + step), params)

    return Replay(*ids, total, steps(), held_out)
