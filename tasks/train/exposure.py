"""The records of a round, step by step: the batches that tasks.train.step draws, and the role of each record in the loss."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.core.training.exposure import HARD, HELD_DOCUMENT, HELD_QUERY, IN_BATCH, POSITIVE, QUERY, Replay, Roles
from tasks.train.batches import Batch, draw_batch, steps_of
from tasks.train.inputs import Inputs, read_data, steps_before
from tasks.train.params import Round


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
    inputs = Inputs(paths["tokens"], paths["corpus"], paths["negatives"], state=paths.get("init-state"))
    documents, queries = inputs.documents(), inputs.queries()
    ids = documents.folder / "ids.parquet", queries.folder / "ids.parquet"
    if params.steps == 0:
        return Replay(*ids, 0, iter(()))
    data = read_data(inputs, params, queries, documents, scratch=scratch, key="rounds")
    sample = data.held_out
    held_out: Roles = {} if sample is None else {HELD_QUERY: sample.queries, HELD_DOCUMENT: sample.documents}
    before = steps_before(params, behind)
    total = steps_of(data.training, params) if trained_steps is None else trained_steps

    def steps() -> Iterator[tuple[int, Roles]]:
        for step in range(total):
            yield step, roles_of(draw_batch(data.training, params, before + step), params)

    return Replay(*ids, total, steps(), held_out)
