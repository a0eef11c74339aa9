"""The records of a fine-tuned cross-encoder, step by step."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tasks.core.text.document import Text
from tasks.core.training.exposure import HARD, POSITIVE, QUERY, Replay, Roles
from tasks.reranker.groups import draw_groups, read_groups
from tasks.reranker.params import Reranker


def replay(paths: Mapping[str, Path], params: Reranker, text: Text, scratch: Path) -> Replay:
    """Replay a training: the groups that the loss of each step compares. No steps if the cross-encoder is used as is."""
    corpus = paths["corpus"]
    ids = corpus / "documents.parquet", corpus / "queries" / "train.parquet"
    if not params.steps:
        return Replay(*ids, 0, iter(()))
    near = paths.get("near")  # earlier trainings had none
    groups = read_groups(corpus, paths["negatives"] / "train.parquet", params.window, text, scratch, near=near)

    def steps() -> Iterator[tuple[int, Roles]]:
        for step in range(params.steps):
            drawn = draw_groups(groups, params, step)
            yield (
                step,
                {
                    QUERY: np.array([query for query, _ in drawn]),
                    POSITIVE: np.array([group[0] for _, group in drawn]),
                    HARD: np.concatenate([group[1:] for _, group in drawn]),
                },
            )

    return Replay(*ids, params.steps, steps())
