"""The records of a query-side training, step by step.

A search depends on the weights at its step, so `retrieved` and `refreshed` lists cannot be replayed. For them, every document of the corpus
counts as searched, and each step has its queries and their positives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.adore.data import Data, batch_of, read_data, steps_of
from tasks.adore.params import Adore
from tasks.core.stage.draws import SAMPLING, draw_seed
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import open_tokens
from tasks.core.training.exposure import HARD, POSITIVE, QUERY, SEARCHED, Replay, Roles
from tasks.core.training.replay import replayed_from

FOUND = ("retrieved", "refreshed")  # lists that depend on the weights


def negatives_of(data: Data, params: Adore, step: int, batch: Ints) -> list[Ints]:
    """The negatives in each query's list, as tasks.adore.step draws them: without known positives and documents with their texts."""
    if params.lists == "random":
        rng = np.random.default_rng(draw_seed(params.seed, SAMPLING, step))
        drawn = list(rng.integers(data.documents, size=(len(batch), min(params.depth, data.documents))))
    else:
        assert data.negatives is not None, "given negatives were not read"
        drawn = [data.negatives.of(query) for query in batch.tolist()]
    return [np.setdiff1d(documents, data.known.of(query)) for query, documents in zip(batch.tolist(), drawn, strict=True)]


def replay(paths: Mapping[str, Path], params: Adore, scratch: Path) -> Replay:
    """Replay a query-side training: the queries of each step, their positives, and their lists, unless a search found these.

    No steps if the query tower is used as it is.
    """
    documents, queries = open_tokens(paths["tokens"] / "documents"), open_tokens(paths["tokens"] / "queries" / "train")
    if params.steps == 0:
        return Replay(documents.folder / "ids.parquet", queries.folder / "ids.parquet", 0, iter(()))
    negatives = paths["negatives"] / "train.parquet" if params.lists == "given" else None
    data = read_data(queries, documents, paths["corpus"] / "qrels" / "train.parquet", negatives, params.depth, scratch)
    ids = queries.folder / "ids.parquet"
    queries_N, _ = replayed_from(paths.get("round-state"), data.queries, ids, share=params.replay, seed=params.seed, key="adore")
    data = replace(data, queries=queries_N)
    total = steps_of(data, params)

    def steps() -> Iterator[tuple[int, Roles]]:
        for step in range(total):
            batch = batch_of(data, params, step)
            drawn = [] if params.lists in FOUND else negatives_of(data, params, step, batch)
            yield (
                step,
                {
                    QUERY: batch,
                    POSITIVE: np.concatenate([data.positives.of(query) for query in batch.tolist()]),
                    HARD: np.concatenate([np.empty(0, dtype=np.int64), *drawn]),
                },
            )

    constant_roles = {SEARCHED: np.arange(data.documents)} if params.lists in FOUND else {}
    return Replay(documents.folder / "ids.parquet", queries.folder / "ids.parquet", total, steps(), constant_roles)
