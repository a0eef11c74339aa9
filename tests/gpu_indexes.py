"""Indexes on a real GPU, in a process of its own: `python -m tests.gpu_indexes FOLDER` prints what test_gpu.py checks, as JSON."""

import json
import sys
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from tasks.core.retrieval.ann.build import build
from tasks.core.retrieval.ann.search import search_index
from tasks.core.retrieval.gpu.indexes import Copied, FaissGpu, on_device
from tasks.index.params import Index
from tests.index.test_build import write_embeddings

GPU = torch.device("cuda:0")
FACTORIES = ["Flat", "IVF64,Flat", "IVF64,SQ8", "IVF64_HNSW16,Flat", "IVF64_HNSW16,SQ8", "IVF64,PQ16", "OPQ16,IVF64,PQ16", "IVF64,PQ64"]
FACTORIES += ["PQ16", "HNSW16", "OPQ6_60,IVF64,PQ6"]  # on the CPU
ROWS, WIDTH, DEPTH = 40_000, 64, 100


def mean_overlap(left: np.ndarray, right: np.ndarray) -> float:
    """The mean share of the same rows."""
    return float(np.mean([len(set(a.tolist()) & set(b.tolist())) / len(b) for a, b in zip(left, right, strict=True)]))


def main(folder: Path) -> None:
    gpu = FaissGpu.of(GPU)
    if gpu is None:
        print(json.dumps({}))
        return
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(200, WIDTH))
    vectors, queries = ((centers[rng.integers(200, size=n)] + rng.normal(size=(n, WIDTH))).astype(np.float32) for n in (ROWS, 500))
    embeddings = write_embeddings(folder / "embeddings", vectors, [ROWS // 2, ROWS // 2])
    exact = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :DEPTH]
    results = {}
    for factory in FACTORIES:
        params = Index(factory=factory, nprobe=16, train_size=10_000)
        start = time.perf_counter()
        built = build(embeddings, params, gpu=gpu)
        seconds = time.perf_counter() - start
        faiss.write_index(built, str(folder / "index"))
        loaded = faiss.read_index(str(folder / "index"))
        gpu_index = on_device(loaded, GPU)
        scores, rows = search_index(gpu_index, queries, DEPTH)
        cpu_scores, cpu_rows = search_index(loaded, queries, DEPTH)
        rows_of_cpu = search_index(build(embeddings, params), queries, DEPTH)[1]
        results[factory] = {
            "kind": type(faiss.downcast_index(built)).__name__,
            "on_gpu": isinstance(gpu_index, Copied),
            "same_rows": mean_overlap(rows, cpu_rows),
            "score_error": float(np.abs(scores - cpu_scores).max() / np.abs(cpu_scores).max()),
            "recall": mean_overlap(rows, exact),
            "recall_of_cpu": mean_overlap(rows_of_cpu, exact),
            "seconds": round(seconds, 2),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
