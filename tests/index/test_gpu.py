"""Indexes on a GPU, by a stand-in for faiss's: which indexes go there, with which options, and what stays on the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from tasks.core.errors import MemoryFull, UserError, user_error
from tasks.core.retrieval.ann.build import build, faiss_errors
from tasks.core.retrieval.ann.search import search_indexed
from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.gpu import indexes
from tasks.core.retrieval.gpu.indexes import FaissGpu, on_device, required_gpu
from tasks.index.params import Index
from tests.fake_gpu import GPU, fake_gpu
from tests.index.test_build import draw_vectors, write_embeddings

WIDTH = 16
CPU = torch.device("cpu")
PQ_LENGTHS = {1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96}  # faiss, IVFPQ::isSupportedPQCodeLength
KNOWN = (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexIVFPQ, faiss.IndexIVFScalarQuantizer)


class OnGpu:
    """A copy of an index: faiss refuses other kinds, and more than 2048 results or lists."""

    def __init__(self, index: Any, options: Any) -> None:
        inner = faiss.downcast_index(index)
        inner = faiss.downcast_index(inner.index) if isinstance(inner, faiss.IndexPreTransform) else inner
        if not isinstance(inner, KNOWN):
            raise RuntimeError("This index type is not implemented on GPU.")
        if isinstance(inner, faiss.IndexIVF):
            assert isinstance(faiss.downcast_index(inner.quantizer), faiss.IndexFlat) or options.allowCpuCoarseQuantizer
            assert inner.nprobe <= 2048
        if isinstance(inner, faiss.IndexIVFPQ):
            assert inner.pq.nbits == 8 and (inner.pq.M < 56 or options.useFloat16)
            if inner.pq.M not in PQ_LENGTHS:
                raise RuntimeError(f"Error in void verifyPQSettings_() const at GpuIndexIVFPQ.cu:1: {inner.pq.M} bytes are not supported")
        else:
            assert not options.useFloat16, "vectors would lose their bits"
        self.index, self.options, self.added, self.searched = faiss.clone_index(index), options, 0, 0

    def add(self, vectors: np.ndarray) -> None:
        self.added += len(vectors)
        self.index.add(vectors)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        assert k <= 2048
        self.searched += len(queries)
        hits: tuple[np.ndarray, np.ndarray] = self.index.search(queries, k)
        return hits


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[OnGpu]:
    """Make faiss see a GPU; returns the indexes that are copied to it."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    clones: list[OnGpu] = []
    memory: list[int] = []

    def copy(resources: Any, number: int, index: Any, options: Any) -> Any:
        assert memory == [1 << 30] and resources.setTempMemory and number == 0
        clones.append(OnGpu(index, options))
        return clones[-1] if options.reserveVecs or index.ntotal else clones[-1].index  # k-means wants faiss's own

    options = {"reserveVecs": 0, "useFloat16": False, "allowCpuCoarseQuantizer": False}
    for name, value in {
        "StandardGpuResources": lambda: (memory.clear(), SimpleNamespace(setTempMemory=memory.append))[1],
        "GpuClonerOptions": lambda: SimpleNamespace(**options),
        "index_cpu_to_gpu": copy,
        "index_gpu_to_cpu": lambda clone: clone.index,
        "get_num_gpus": lambda: 1,
    }.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
    return clones


@pytest.fixture
def embeddings(tmp_path: Path) -> Embeddings:
    return write_embeddings(tmp_path / "e", draw_vectors(600), [100, 1, 499])


@pytest.mark.parametrize("factory", ["IVF8,Flat", "IVF8,SQ8", "OPQ4,IVF4,PQ4", "PCA8,IVF8_HNSW4,Flat", "Flat"])
def test_an_index_filled_on_a_gpu_is_an_ordinary_one(factory: str, embeddings: Embeddings, copies: list[OnGpu], tmp_path: Path) -> None:
    """The stand-in computes as a CPU does, so the files are equal."""
    params = Index(factory=factory, nprobe=3)
    files = []
    for gpu in (None, required_gpu(GPU)):
        faiss.write_index(build(embeddings, params, gpu=gpu), str(tmp_path / "index"))
        files.append((tmp_path / "index").read_bytes())
    assert files[0] == files[1]
    *clustered, filled = copies
    assert bool(clustered) == ("IVF" in factory) and filled.added == 600
    assert filled.options.reserveVecs == 600
    assert filled.options.allowCpuCoarseQuantizer == ("HNSW" in factory)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("HNSW8", "on the CPU: faiss has no IndexHNSW"),
        ("PQ4x4", "on the CPU: faiss has no IndexPQ"),
        ("IVF4,PQ4x4", "on the CPU: its codes have 4 bits"),
        ("OPQ6_12,IVF4,PQ6", "on the CPU: 6 bytes are not supported"),
    ],
)
def test_what_a_gpu_cannot_hold_is_built_and_searched_on_the_cpu(
    factory: str, reason: str, embeddings: Embeddings, copies: list[OnGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    index = build(embeddings, Index(factory=factory), gpu=required_gpu(GPU))
    assert index.ntotal == 600 and all(not copy.added for copy in copies)
    output = capsys.readouterr().out
    assert f"index {factory}: {reason}" in output
    assert on_device(index, GPU) is index
    assert f"search index: {reason}" in capsys.readouterr().out


def test_lookup_tables_of_long_codes_are_in_float16(copies: list[OnGpu], tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "wide", draw_vectors(600, width=56), [600])
    index = build(embeddings, Index(factory="IVF4,PQ56"), gpu=required_gpu(GPU))
    assert copies[-1].options.useFloat16 and not copies[0].options.useFloat16
    assert isinstance(faiss.downcast_index(index), faiss.IndexIVFPQ)


def test_searches_go_to_the_gpu(embeddings: Embeddings, copies: list[OnGpu], capsys: pytest.CaptureFixture[str]) -> None:
    index, queries = build(embeddings, Index(factory="IVF8,Flat", nprobe=8)), draw_vectors(7, 1)
    assert on_device(index, CPU) is index
    searched = on_device(index, GPU)
    expected = search_indexed(queries, index, 10)
    hits = search_indexed(queries, searched, 10)
    assert (hits[0] == expected[0]).all() and (hits[1] == expected[1]).all()
    assert copies[-1].searched == 7
    assert not capsys.readouterr().out


def test_many_results_and_lists_come_from_the_cpu(
    embeddings: Embeddings, copies: list[OnGpu], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(indexes, "MOST", 40)
    index = build(embeddings, Index(factory="IVF50,Flat", nprobe=40))
    searched = on_device(index, GPU)
    for _ in range(2):
        searched.search(draw_vectors(3, 1), 41)
    assert copies[-1].searched == 0
    assert capsys.readouterr().out == "search index: on the CPU: 41 results per query, and a GPU returns at most 40\n"
    index.nprobe = 41
    assert on_device(index, GPU) is index
    assert "nprobe is 41" in capsys.readouterr().out


@pytest.mark.usefixtures("copies")
def test_an_index_that_does_not_fit_is_searched_on_the_cpu(
    embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_allocate(*_: Any) -> Any:
        raise RuntimeError("Error in virtual void* faiss::gpu: at x.cpp:1:\nFailed to cudaMalloc 1 bytes on device 0")

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", fail_to_allocate)
    index = build(embeddings, Index(factory="IVF8,Flat"))
    assert on_device(index, GPU) is index
    assert capsys.readouterr().out == "search index: on the CPU: Failed to cudaMalloc 1 bytes on device 0\n"


def test_a_gpu_that_is_full_in_a_search_says_nothing_of_the_index(embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs use its memory too: another factory string would not help."""
    index = build(embeddings, Index(factory="IVF8,Flat"))

    def fail_to_allocate(*_: Any) -> Any:
        raise RuntimeError(
            "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const AllocRequest&) at x.cpp:1: "
            "Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryOverflow dev 0 space Device "
            "stream 0x1 size 38400000000 bytes (cudaMalloc error out of memory [2])\n"
        )

    monkeypatch.setattr(index, "search", fail_to_allocate)
    with pytest.raises(RuntimeError) as raised:
        search_indexed(draw_vectors(3, 1), index, 10)
    error = user_error(raised.value)
    assert isinstance(error, MemoryFull) and str(error).startswith("cudaMalloc error out of memory: ")


def test_a_gpu_that_is_full_is_no_fault_of_the_factory() -> None:
    with (
        pytest.raises(RuntimeError, match="out of memory") as raised,
        faiss_errors("Flat, to which vectors cannot be added", "index.factory"),
    ):
        raise RuntimeError("StandardGpuResources: alloc fail (cudaMalloc error out of memory [2])")
    assert isinstance(user_error(raised.value), MemoryFull)


def test_a_gpu_that_is_not_there() -> None:
    assert FaissGpu.of(CPU) is None
    with pytest.raises(UserError, match=r"index\.build: found gpu, .* expected the extra gpu .* set index\.build: cpu"):
        required_gpu(CPU)


def test_the_stage_refuses_without_a_gpu_before_it_reads(small: Any) -> None:
    small.set("index.build", "gpu")
    result = small.stage("index@warmup", *small.elsewhere("index@warmup", "gpu"))
    assert result.status == 2 and result.err.count("\n") == 1 and "index.build: found gpu" in result.err
    assert not (small.folder / "gpu").exists()


def test_the_stage_on_a_gpu(small: Any, copies: list[OnGpu]) -> None:
    small.set("index.factory", "IVF4,Flat")
    assert small.stage("index@warmup", *small.elsewhere("index@warmup", "cpu")).status == 0
    assert not copies
    small.set("index.build", "gpu")
    small.write("runtime.yaml", "device: cuda:0\n")
    with fake_gpu():
        result = small.stage("index@warmup", *small.elsewhere("index@warmup", "gpu"))
    assert result.status == 0, result.err
    assert copies
    assert small.read("gpu/data/indexes/warmup/index.faiss") == small.read("cpu/data/indexes/warmup/index.faiss")
