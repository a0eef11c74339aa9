"""The best passage of a document, against plain loops."""

from typing import Any

import numpy as np
import pytest
import torch

from tasks.adore import step as module
from tasks.adore.step import make_corpus

OWNERS = np.array([0, 0, 0, 1, 2, 2, 3], dtype=np.int32)


class Documents:
    """Vectors in memory, and how many rows were scored at a time."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors, self.asked = vectors, list[int]()

    def search(self, *_: Any) -> Any:
        raise AssertionError("not asked for")

    def scores(self, queries_BD: torch.Tensor, rows_BL: np.ndarray) -> torch.Tensor:
        self.asked.append(rows_BL.size)
        return torch.einsum("bd,bld->bl", queries_BD, torch.from_numpy(self.vectors[np.maximum(rows_BL, 0)]))


@pytest.mark.parametrize("at_once", [1, 8, 1000])
def test_the_best_passages_of_documents(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", at_once)
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(n, 4)).astype(np.float32) for n in (len(OWNERS), 4))
    vectors[2] = vectors[0]  # of equal passages the first
    documents = Documents(vectors)
    best = make_corpus(documents, OWNERS, np.arange(4), 4).best_rows(torch.from_numpy(queries))
    wanted = [[2, 0], [], [1], [3, 2, 1, 0, 2]]
    found = best([np.array(own, dtype=np.int64) for own in wanted])
    for query, own, rows in zip(queries, wanted, found, strict=True):
        plain = [max(np.flatnonzero(owner == OWNERS).tolist(), key=lambda row, q=query: (float(q @ vectors[row]), -row)) for owner in own]
        assert rows.tolist() == plain and rows.dtype == np.int64
    assert max(documents.asked) <= max(at_once, 10) and len(documents.asked) == (1 if at_once == 1000 else 4)


def test_documents_of_one_passage_are_not_scored() -> None:
    corpus = make_corpus(Documents(np.zeros((3, 2), np.float32)), np.arange(3, dtype=np.int32), np.arange(3), 3)
    best = corpus.best_rows(torch.zeros(2, 2))
    assert [rows.tolist() for rows in best([np.array([2, 0]), np.array([], dtype=np.int64)])] == [[2, 0], []]
