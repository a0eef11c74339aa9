"""A step over trained centroids on several ranks: their shares of the gradients add up to those of one process."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from tasks.adore import documents as documents_module
from tasks.adore.data import Data
from tasks.adore.documents import Centroids
from tasks.adore.params import Adore
from tasks.adore.step import make_corpus, make_step
from tasks.adore.work import INDEX, built_index, open_documents
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.tables.judgments import lists_of
from tasks.core.training.compute import Compute
from tasks.core.training.figures import read_figures
from tasks.core.workers.gang import Gang
from tests.gangs import as_ranks, tokens_of
from tests.index.test_build import write_embeddings

CPU = torch.device("cpu")
ROWS, QUERIES = 400, 6


class Ties:
    """An index whose passages all score the same: which ones are found depends on the rank that searches."""

    def __init__(self, first: int) -> None:
        self.first, self.asked = first, 0

    def search(self, queries_BD: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked += 1
        rows = np.arange(self.first, self.first + depth)
        return np.ones((len(queries_BD), depth), dtype=np.float32), np.tile(rows, (len(queries_BD), 1))

    def scores(self, queries_BD: torch.Tensor, rows_BL: np.ndarray) -> torch.Tensor:
        return torch.ones(len(queries_BD), rows_BL.shape[1])


def test_every_rank_has_the_lists_of_the_first() -> None:
    def rank(gang: Gang) -> tuple[list[list[int]], int]:
        ties = Ties(100 * gang.rank)
        corpus = make_corpus(ties, np.arange(ROWS, dtype=np.int32), np.arange(ROWS), 5, gang)
        return corpus.top_rows(torch.zeros(2, 4)).tolist(), ties.asked

    (lists, searches), *others = as_ranks(3, rank)
    assert searches == 1 and {row for rows in lists for row in rows} <= set(range(100))
    assert others == [(lists, 0)] * 2


@pytest.mark.parametrize("scores", ["exact", "decoded"])
@pytest.mark.parametrize("factory", ["IVF4,Flat", "IVF4,PQ2x4", "HNSW8"])
def test_only_the_first_rank_copies_the_index_to_its_gpu(
    factory: str, scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss.omp_set_num_threads(1)
    vectors = np.random.default_rng(1).normal(size=(ROWS, 8)).astype(np.float32)
    embeddings = write_embeddings(tmp_path / "e", vectors, [150, 150, 100])
    params = Adore(round="a", negatives="none", index=factory, scores=scores)
    index = built_index(embeddings, params, tmp_path / INDEX, "adore.a.index")
    monkeypatch.setattr(documents_module, "on_device", lambda index, device: ("copied", index, device))
    rows, queries_BD = np.array([[3, 399, 160], [0, 1, 310]]), torch.from_numpy(vectors[:2])

    def rank(gang: Gang) -> tuple[bool, torch.Tensor]:
        setting: Any = SimpleNamespace(embeddings=embeddings, device=CPU, gang=gang)
        documents: Any = open_documents(setting, params, tmp_path, "adore.a", None)
        return isinstance(documents.searched, tuple), documents.scores(queries_BD, rows)

    row_vectors = vectors[rows] if scores == "exact" else index.reconstruct_n(0, ROWS)[rows]
    expected = torch.from_numpy(np.einsum("bd,bld->bl", vectors[:2], row_vectors))
    results = as_ranks(2, rank)
    assert [copied for copied, _ in results] == [True, False]
    for _, rank_scores in results:
        torch.testing.assert_close(rank_scores, expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_of_tower_and_centroids_add_up(ranks: int, tiny_encoder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    tower = load_towers(tiny_encoder).document.eval()  # without dropout: seeds are the process's
    vectors = np.random.default_rng(1).normal(size=(ROWS, tower.width)).astype(np.float32)
    index = faiss.index_factory(tower.width, "PQ4", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    queries = tokens_of([4, 9, 3, 5, 7, 6], 1)
    numbers = np.arange(QUERIES)
    positives = lists_of(numbers, 7 * numbers, QUERIES, np.ones(QUERIES, dtype=np.float32))
    data = Data(numbers, positives, None, ROWS, positives)
    params = Adore(round="a", negatives="none", index="PQ4", centroids=True, depth=30, batch_queries=QUERIES)
    params = params.model_copy(update={"batch_tokens": 18})  # two texts or three, which no user may have: several chunks
    towers = [tower, *(copy.deepcopy(tower) for _ in range(ranks))]

    def step(own: Encoder, gang: Gang | None = None) -> tuple[float, list[torch.Tensor]]:
        centroids = Centroids(faiss.clone_index(index), CPU, "adore.a.index")
        corpus = make_corpus(centroids, np.arange(ROWS, dtype=np.int32), np.arange(ROWS), params.depth, gang)
        scratch = tmp_path / str("alone" if gang is None else gang.rank)
        scratch.mkdir()
        backward = make_step(own, queries, data, corpus, params, lambda _: False, scratch, Compute(CPU, torch.float32, 0, gang))
        loss = read_figures(backward(0))["loss"]
        weights = [centroids.weight, *own.parameters()]
        if gang is not None:
            assert (centroids.weight.grad is None) == (gang.rank > 0), "counted once"
            gang.sum_gradients(weights)
        return loss, [weight.grad for weight in weights if weight.grad is not None]

    loss, expected = step(towers[0])
    assert len(expected) > 30 and float(expected[0].abs().sum()) > 0
    for rank_loss, gradients in as_ranks(ranks, lambda gang: step(towers[1 + gang.rank], gang)):
        assert rank_loss == pytest.approx(loss, rel=1e-6) and len(gradients) == len(expected)
        for ours, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6 * float(expected[0].abs().max()))
