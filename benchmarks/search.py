"""Exact search of many queries, and the search of a query-side training's step: this product against faiss, same vectors, one run.

    python benchmarks/search.py [--rows 1000000] [--queries 2000] [--width 384] [--depth 200] [--batch 32] [--repeat 3]

The peer is IndexFlatIP on all cores. Ours reads the vectors from shards on disk for many queries, as mine and retrieve do; for a step, as
adore does, a CPU maps a copy of them and a GPU holds them. The index always holds them. Results are compared: the same scores to 1e-4, and
the same rows but for ties. A step's search is of `batch` queries. Best of --repeat, alternating. The floor of many queries is the product
alone, in bf16 where the machine multiplies that, measured by one of 2,048 queries and a shard; that of a step is reading the vectors once
in that type.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import torch

from tasks.adore.documents import Exact, search_documents
from tasks.core.files import file_digest
from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.embeddings import Embeddings, Manifest, shard_name
from tasks.core.retrieval.exact import Reread, exact_search

SHARD = 4096  # rows, as encode's are on average
TOLERANCE = 1e-4


def best_of(repeat: int, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each, the best of several alternating rounds; the first round is not counted."""
    seconds = dict.fromkeys(runs, float("inf"))
    for number in range(repeat + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start) if number else seconds[name]
    return seconds


def agree(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray], depth: int) -> None:
    """AssertionError unless both found the same."""
    (scores, rows), (faiss_scores, faiss_rows) = ours, theirs
    np.testing.assert_allclose(scores[:, :depth], faiss_scores, atol=TOLERANCE)
    differ = [len(set(a.tolist()) ^ set(b.tolist())) for a, b in zip(rows[:, :depth], faiss_rows, strict=True)]
    assert max(differ) <= 4, f"{max(differ)} rows differ, more than ties at the last rank"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    values = {"rows": 1_000_000, "queries": 2000, "width": 384, "depth": 200, "batch": 32, "repeat": 3}
    for name, value in values.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    device = choose_device(Runtime())
    rng = np.random.default_rng(0)

    def unit(rows: int) -> np.ndarray:
        vectors = rng.standard_normal((rows, args.width), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    queries, index = unit(args.queries), faiss.IndexFlatIP(args.width)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [min(SHARD, args.rows - first) for first in range(0, args.rows, SHARD)]
        for number, rows in enumerate(sizes):
            block = unit(rows)
            np.save(Path(folder) / shard_name(number), block)
            index.add(block)
        digests = [file_digest(Path(folder) / shard_name(number)) for number in range(len(sizes))]
        embeddings = Embeddings(Path(folder), Manifest(args.rows, args.width, "float32", sizes, "", "", 0, "", digests))
        documents = Exact(embeddings, device, Path(folder))
        vectors_RD = torch.from_numpy(faiss.rev_swig_ptr(index.get_xb(), args.rows * args.width).reshape(args.rows, args.width)).to(device)

        def every() -> tuple[np.ndarray, np.ndarray]:
            return exact_search(queries, Reread(embeddings.blocks), args.depth, device)

        def step() -> tuple[np.ndarray, np.ndarray]:
            return search_documents(documents, torch.from_numpy(batch_queries).to(device), args.depth)

        batch_queries, product = queries[: args.batch], torch.from_numpy(queries[:2048]).to(device)
        agree(every(), index.search(queries, args.depth), args.depth)
        agree(step(), index.search(batch_queries, args.depth), args.depth)
        batch_seconds = best_of(args.repeat, {"retemper": every, "faiss": lambda: index.search(queries, args.depth)})
        step_seconds = best_of(args.repeat, {"retemper": step, "faiss": lambda: index.search(batch_queries, args.depth)})
        dtype = compute_dtype(device, "bf16")
        product, shard, numbers = (
            product.to(dtype),
            vectors_RD[:SHARD].to(dtype),
            vectors_RD.to(dtype).view(torch.int16 if dtype.itemsize == 2 else torch.int32),
        )
        floors = best_of(args.repeat, {"product": lambda: float((product @ shard.T)[0, 0]), "read": lambda: int(numbers.amax())})
    floor = floors["product"] * args.rows / SHARD * args.queries / len(product)
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(
        f"\n{args.rows:,} x {args.width}, top {args.depth}, {device.type} ({hardware}, {torch.backends.cpu.get_cpu_capability()}), ", end=""
    )
    print(f"torch {torch.__version__}, faiss {faiss.__version__}")
    print(f"{'search':<34}{'retemper s':>12}{'faiss s':>10}{'ratio':>8}{'floor s':>10}")
    for name, seconds, floor_seconds in (
        (f"{args.queries:,} queries", batch_seconds, floor),
        (f"a step of {args.batch}", step_seconds, floors["read"]),
    ):
        print(f"{name:<34}{seconds['retemper']:>12.3f}{seconds['faiss']:>10.3f}", end="")
        print(f"{seconds['faiss'] / seconds['retemper']:>7.2f}x{floor_seconds:>10.3f}")


if __name__ == "__main__":
    main()
