"""What an index is trained on, and by how many threads it is trained and filled."""

import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from tasks.core.retrieval.ann.build import build, training_sample
from tasks.index.params import Index
from tests.index.test_build import draw_vectors, write_embeddings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("IVF8_HNSW4,Flat", {"IndexHNSWFlat.add": {1}, "IndexIVFFlat.add": {4}}),
        ("IVF8(HNSW4),Flat", {"IndexHNSWFlat.add": {1}, "IndexIVFFlat.add": {4}}),
        ("IVF8(HNSW4_SQ8),Flat", {"IndexHNSWSQ.add": {1}, "IndexIVFFlat.add": {4}}),
        ("PCA8,IVF8_HNSW4,Flat,RFlat", {"PCAMatrix.train": {1}, "IndexHNSWFlat.add": {1}}),
        ("PCA8,SQ8", {"PCAMatrix.train": {1}}),
        ("OPQ4_8,Flat", {"OPQMatrix.train": {4}}),
    ],
)
def test_what_depends_on_threads_has_one(
    factory: str, expected: dict[str, set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the bits of these differ with the number of threads depends on the CPU, so we ask how many there were."""
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(600), [200, 400])
    thread_counts: dict[str, set[int]] = {}

    def watch_threads(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def record_threads(self: Any, vectors: np.ndarray) -> None:
            thread_counts.setdefault(f"{owner.__name__}.{name}", set()).add(faiss.omp_get_max_threads())
            method(self, vectors)

        monkeypatch.setattr(owner, name, record_threads)

    for owner in (faiss.PCAMatrix, faiss.OPQMatrix):
        watch_threads(owner, "train")
    for owner in (faiss.IndexHNSWFlat, faiss.IndexHNSWSQ, faiss.IndexIVFFlat):
        watch_threads(owner, "add")
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        build(embeddings, Index(factory=factory))
        assert faiss.omp_get_max_threads() == 4, "the rest has them all"
    finally:
        torch.set_num_threads(threads)
    assert thread_counts == expected


def test_hnsw_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(3000), [1000, 2000])
    thread_counts: set[int] = set()  # two cores may come to the same graph by chance
    add = faiss.IndexHNSWFlat.add
    monkeypatch.setattr(faiss.IndexHNSWFlat, "add", lambda self, x: (thread_counts.add(faiss.omp_get_max_threads()), add(self, x))[1])
    threads = torch.get_num_threads()
    torch.set_num_threads(4)  # which filling it would use
    try:
        for name in ("a", "b"):
            faiss.write_index(build(embeddings, Index(factory="HNSW8")), str(tmp_path / name))
        assert faiss.omp_get_max_threads() == 4, "the search has them all again"
    finally:
        torch.set_num_threads(threads)
    assert thread_counts == {1}
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("size", [1, 40, 200, 500])
def test_the_training_sample_is_drawn_from_all_rows(size: int, tmp_path: Path) -> None:
    vectors = np.arange(200, dtype=np.float32)[:, None] * np.ones((1, 3), dtype=np.float32)
    embeddings = write_embeddings(tmp_path / "e", vectors.astype(np.float16), [50, 1, 149])
    sample = training_sample(embeddings, size, 3)
    numbers = sample[:, 0].astype(int).tolist()
    assert sample.dtype == np.float32 and len(set(numbers)) == min(size, 200) and numbers == sorted(numbers)
    if size == 40:
        assert max(numbers) > 150 > 60 > min(numbers)
        assert numbers != training_sample(embeddings, size, 4)[:, 0].astype(int).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_training_sample_is_held_once_and_not_while_filling(dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 262,144 vectors of width 768 it has 0.8 GB."""
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(8000, width=256).astype(dtype), [1000] * 8)
    tracemalloc.start()
    try:
        size = training_sample(embeddings, 8000, 0).nbytes
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()
    samples: list[weakref.ref[np.ndarray]] = []
    train, add = faiss.IndexIVFFlat.train, faiss.IndexIVFFlat.add
    monkeypatch.setattr(faiss.IndexIVFFlat, "train", lambda self, x: (samples.append(weakref.ref(x)), train(self, x))[1])
    alive: list[bool] = []
    monkeypatch.setattr(faiss.IndexIVFFlat, "add", lambda self, x: (alive.append(samples[0]() is not None), add(self, x))[1])
    build(embeddings, Index(factory="IVF4,Flat"))
    assert alive == [False] * 8
