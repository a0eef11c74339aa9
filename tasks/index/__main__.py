"""Document vectors to a faiss index, measured against exact search with the dev queries."""

import time
from typing import Any

import numpy as np

from tasks.core.files import new_folder, write_json
from tasks.core.machine.devices import choose_device
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.retrieval.ann.build import build_file, recall
from tasks.core.retrieval.ann.search import ShortLists, open_index, search_index
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.gpu.indexes import on_device, required_gpu
from tasks.core.retrieval.queries import encode_queries, search_embeddings
from tasks.core.retrieval.ranked import Floats
from tasks.core.stage.entry import parser, record_cost, stage
from tasks.core.tokens.folder import open_tokens
from tasks.index.params import Index

TIMED = 200  # of the sample, searched one at a time for latencies
SAMPLE = 1000  # the first dev queries, to measure recall with


def latencies(index: Any, queries_QD: Floats, k: int) -> dict[str, float]:
    """Milliseconds per query to search the top `k`: one query at a time (median, 99th percentile), and all queries at once."""
    milliseconds = []
    for query_1D in np.split(queries_QD[:TIMED], min(TIMED, len(queries_QD))):
        start = time.perf_counter()
        search_index(index, query_1D, k)
        milliseconds.append(1000 * (time.perf_counter() - start))
    start = time.perf_counter()
    search_index(index, queries_QD, k)
    batched = 1000 * (time.perf_counter() - start) / len(queries_QD)
    return {
        "search_p50_ms": float(np.median(milliseconds)),
        "search_p99_ms": float(np.quantile(milliseconds, 0.99)),
        "search_batched_ms": batched,
    }


def main() -> None:
    arguments = parser(
        __doc__ or "",
        embeddings="embedding folder",
        encoder="encoder folder",
        queries="token folder of the queries that recall is measured with",
        out="index folder to write",
        metrics="JSON to write",
    ).parse_args()
    params, runtime = load(Index, "index"), read_runtime()
    device = choose_device(runtime if params.build == "gpu" else runtime.model_copy(update={"device": "cpu"}))  # a flow gives it no GPU
    gpu = required_gpu(device) if params.build == "gpu" else None
    embeddings, tokens = open_embeddings(arguments.embeddings), open_tokens(arguments.queries)
    with new_folder(arguments.out) as out:
        path = out / "index.faiss"
        build_file(embeddings, params, path, gpu=gpu)
        index = open_index(path, len(embeddings), embeddings.manifest.width)
        figures = {
            "factory": params.factory,
            "rows": len(embeddings),
            "width": embeddings.manifest.width,
            "bytes": path.stat().st_size,
            "bytes_per_vector": round(path.stat().st_size / len(embeddings), 1),
        }
    if len(tokens):
        queries = encode_queries(arguments.encoder, tokens, "fp32", device, most=SAMPLE)
        k = min(params.recall_at, len(embeddings))
        exact_rows = search_embeddings(queries, embeddings, k, device)[1]
        found_rows = search_index(on_device(index, device), queries, k)[1]
        figures[f"recall@{k}"] = round(recall(queries, found_rows, exact_rows, k, embeddings.take), 6)
        ShortLists(k).count((found_rows >= 0).sum(axis=1)).warn(f"recall@{k}", index, "index.")
        record_cost(**latencies(index, queries, k))
    write_json(arguments.metrics, figures)


if __name__ == "__main__":
    with stage():
        main()
