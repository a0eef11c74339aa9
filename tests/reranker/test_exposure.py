"""The replay of a cross-encoder's training equals the pairs of texts that an instrumented run of the stage read."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.models.cross_encoder import CrossEncoder
from tasks.core.params.sections import load
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import DOCUMENTS, QUERIES
from tasks.core.text.document import Text
from tasks.core.training.exposure import HARD, POSITIVE, QUERY
from tasks.core.training.loop import Steps
from tasks.reranker import exposure, step
from tasks.reranker import work as entry
from tasks.reranker.params import Reranker


def test_replay_equals_an_instrumented_run(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.set("rerankers.small.steps", 3)
    small.set("rerankers.small.hard_negatives", 2)
    small.set("rerankers.small.batch_queries", 4)
    pairs: list[list[tuple[str, str]]] = []
    make = step.make_step

    def make_recorded_step(encoder: CrossEncoder, *rest: Any) -> Any:
        backward, tokenizer = make(encoder, *rest), encoder.tokenizer

        def record(queries: list[str], documents: list[str], **how: Any) -> Any:
            pairs[-1] += zip(queries, documents, strict=True)
            return tokenizer(queries, documents, **how)

        object.__setattr__(encoder, "tokenizer", record)

        def step(number: int) -> dict[str, float]:
            pairs.append([])
            return dict(backward(number))

        return Steps.undrawn(step)

    monkeypatch.setattr(entry, "make_step", make_recorded_step)
    result = small.stage("reranker@small", *small.elsewhere("reranker@small", "again"))
    assert result.status == 0, result
    corpus = small.folder / "data/corpus"
    texts = dict(enumerate(read_table(corpus / "documents.parquet", DOCUMENTS)["text"].to_pylist()))
    query_texts = dict(enumerate(read_table(corpus / "queries/train.parquet", QUERIES)["text"].to_pylist()))
    params = load(Reranker, "rerankers.small", small.folder / "params.yaml")
    replay = exposure.replay({"corpus": corpus, "negatives": small.folder / f"data/negatives/{params.negatives}"}, params, Text(), tmp_path)
    replayed = [roles for _, roles in replay.steps]
    assert len(replayed) == len(pairs) == 3
    for roles, read in zip(replayed, pairs, strict=True):
        assert {query_texts[q] for q in roles[QUERY].tolist()} == {query for query, _ in read}
        assert [texts[d] for d in roles[POSITIVE].tolist()] == [document for _, document in read[::3]]
        assert {texts[d] for d in roles[HARD].tolist()} == {document for n, (_, document) in enumerate(read) if n % 3}
