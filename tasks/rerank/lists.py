"""Rerank the lists of queries, one query at a time, as in interactive search."""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.models.cross_encoder import CrossEncoder, load_cross_encoder
from tasks.core.params.runtime import Runtime
from tasks.core.text.document import Text
from tasks.core.text.mapped import Texts, corpus_texts
from tasks.rerank.params import Rerank


class Listed(NamedTuple):
    """A query's id and text, and the documents found for it: ids and ordinals, best first."""

    query: str
    text: str
    docs: list[str]
    rows: list[int]


class Reranked(NamedTuple):
    """The model's score of each document of a query, and the seconds that scoring took."""

    scores: list[float]
    seconds: float


@dataclass(frozen=True)
class Model:
    """A cross-encoder and the texts of a corpus, both opened at first use."""

    reranker: Path
    corpus: Path
    file: Path  # the documents' texts, as corpus_texts wrote them
    params: Rerank
    text: Text
    runtime: Runtime

    @cached_property
    def texts(self) -> Texts:
        return corpus_texts(self.corpus, self.text, self.file)

    @cached_property
    def model(self) -> CrossEncoder:
        device = choose_device(self.runtime)
        dtype = compute_dtype(device, self.params.precision)
        model = load_cross_encoder(self.reranker, self.params.max_length, self.params.batch_tokens, device, dtype)
        model.scores([("", "")])  # warm-up: a device's first products load its kernels
        return model

    def __call__(self, lists: list[Listed]) -> list[Reranked]:
        return [self._rerank(listed) for listed in lists]

    def _rerank(self, listed: Listed) -> Reranked:
        model, pairs = self.model, [(listed.text, self.texts[row]) for row in listed.rows]
        started = time.perf_counter()
        scores = model.scores(pairs).tolist()
        return Reranked(scores, time.perf_counter() - started)
