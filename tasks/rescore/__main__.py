"""Rescore the best documents of a run by a bi-encoder's scores, and record the time per query."""

import time
from array import array
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tasks.core.files import new_folder, write_json
from tasks.core.machine.devices import choose_device, hardware
from tasks.core.models.bi_encoder import Encoder
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.retrieval.embeddings import Embeddings, open_embeddings
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.queries import encode_queries, query_tower
from tasks.core.stage.entry import parser, stage
from tasks.core.tables.ids import Ints, ordinals
from tasks.core.tables.schemas import MEASURED
from tasks.core.tokens.folder import open_tokens
from tasks.core.trec.runs import best_first, ranked_batch, read_run, write_run
from tasks.rescore.params import Rescore

BLOCK = 1024  # queries whose lists are Python objects at a time


def read_columns(run: Path, depth: int) -> tuple[pa.ChunkedArray, Ints, pa.ChunkedArray]:
    """Read a run as columns, in file order: its queries [Q], the number of documents of each (at most `depth`), and these documents [P]."""
    lists, counts = read_run(run, depth), array("q")
    names, documents = [pa.array([], pa.string())], [pa.array([], pa.string())]
    while block := list(islice(lists, BLOCK)):
        counts.extend(len(docs) for _, docs in block)
        names.append(pa.array([query for query, _ in block], pa.string()))
        documents.append(pa.array([doc for _, docs in block for doc in docs], pa.string()))
    return pa.chunked_array(names), np.array(counts, dtype=np.int64), pa.chunked_array(documents)


def rescore_run(
    run: Path, encoder: Path, tower: Encoder, embeddings: Embeddings, tokens: Path, params: Rescore, device: torch.device
) -> tuple[Iterator[pa.RecordBatch], float]:
    """The rescored run (schema RANKED), BLOCK queries at a time, and the milliseconds per query for encoding and scoring.

    The time excludes startup. `tower` is the query tower of `encoder`. All of `embeddings` must have been read once before.
    """
    names, counts, documents = read_columns(run, params.depth)
    queries = open_tokens(tokens)
    query = np.repeat(ordinals(names, tokens / "ids.parquet"), counts)
    document = ordinals(documents, embeddings.folder / "ids.parquet")
    encode_queries(encoder, queries, params.precision, device, most=1, tower=tower)  # warm-up: loads the device's kernels
    started = time.perf_counter()
    vectors_QD = encode_queries(encoder, queries, params.precision, device, tower=tower)
    scores = embedded_scores(vectors_QD, embeddings, query, document)
    milliseconds = 1000 * (time.perf_counter() - started) / max(1, len(names))
    ends = np.concatenate([[0], counts.cumsum()]).tolist()

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(names), BLOCK):
            block = zip(names.slice(start, BLOCK).to_pylist(), pairwise(ends[start : start + BLOCK + 1]), strict=True)
            yield ranked_batch([(name, best_first(documents.slice(a, b - a).to_pylist(), scores[a:b].tolist())) for name, (a, b) in block])

    return batches(), milliseconds


def main() -> None:
    arguments = parser(
        __doc__ or "",
        run="folder of the runs",
        encoder="encoder folder",
        embeddings="folder of its document vectors",
        queries="folder of the splits' query tokens",
        out="run folder to write, SPLIT.trec",
        latency="JSON file to write: time per query",
    )
    arguments.add_argument("--name", required=True, help="the entry of `rescore`")
    args = arguments.parse_args()
    params, runtime = load(Rescore, f"rescore.{args.name}"), read_runtime()
    device = choose_device(runtime)
    tower, embeddings, latency = query_tower(args.encoder, params.precision, device), open_embeddings(args.embeddings), {}
    for _ in embeddings.blocks():  # the first read checks every shard's bytes
        pass
    with new_folder(args.out) as out:
        for split in MEASURED:
            run = args.run / f"{split}.trec"
            if run.exists():
                batches, milliseconds = rescore_run(run, args.encoder, tower, embeddings, args.queries / split, params, device)
                latency[split] = {"milliseconds a query": milliseconds}
                write_run(out / run.name, batches, args.name)
    write_json(args.latency, {"device": hardware(device), "depth": params.depth, **latency})


if __name__ == "__main__":
    with stage():
        main()
