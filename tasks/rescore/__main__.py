"""The best of a run in the order of a bi-encoder's scores, and what that took."""

import time
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tasks.core.devices import choose_device, hardware, read_runtime
from tasks.core.embeddings import Embeddings, open_embeddings
from tasks.core.encoder import Encoder
from tasks.core.entry import parser, stage
from tasks.core.files import new_folder, write_json
from tasks.core.pair_scores import embedded_scores
from tasks.core.params import load
from tasks.core.queries import encode_queries, query_tower
from tasks.core.records import RANKED
from tasks.core.runs import best_first, ranked_batch, read_run
from tasks.core.tables import write_table
from tasks.core.tokens import open_tokens, ordinals
from tasks.rescore.params import Rescore


def rescored(
    run: Path, encoder: Path, tower: Encoder, embeddings: Embeddings, tokens: Path, params: Rescore, device: torch.device
) -> tuple[pa.RecordBatch, float]:
    """The run in its new order (schema RANKED), and milliseconds a query: encoding and scores, without start-up.

    `tower` is the query tower of `encoder`, and all of `embeddings` has been read once.
    """
    lists = list(read_run(run, params.depth))
    names = pa.chunked_array([[query for query, docs in lists for _ in docs]], pa.string())
    found = pa.chunked_array([[doc for _, docs in lists for doc in docs]], pa.string())
    queries = open_tokens(tokens)
    query, document = ordinals(names, tokens / "ids.parquet"), ordinals(found, embeddings.folder / "ids.parquet")
    encode_queries(encoder, queries, params.precision, device, most=1, tower=tower)  # a device's first products load its kernels
    started = time.perf_counter()
    vectors_QD = encode_queries(encoder, queries, params.precision, device, tower=tower)
    scores = embedded_scores(vectors_QD, embeddings, query, document)
    milliseconds = 1000 * (time.perf_counter() - started) / max(1, len(lists))
    rows = zip(names.to_pylist(), found.to_pylist(), scores.tolist(), strict=True)
    order = [
        (name, best_first([d for _, d, _ in group], [s for _, _, s in group]))
        for name, group in ((name, list(part)) for name, part in groupby(rows, key=lambda row: row[0]))
    ]
    return ranked_batch(order), milliseconds


def main() -> None:
    arguments = parser(
        __doc__ or "",
        run="folder of the runs",
        encoder="encoder folder",
        embeddings="its document vectors",
        queries="folder of the splits' query tokens",
        out="folder of ranked lists to write",
        latency="JSON file to write: what it took",
    )
    arguments.add_argument("--name", required=True, help="the entry of `rescore`")
    args = arguments.parse_args()
    params, runtime = load(Rescore, f"rescore.{args.name}"), read_runtime()
    device = choose_device(runtime)
    tower, embeddings, latency = query_tower(args.encoder, params.precision, device), open_embeddings(args.embeddings), {}
    for _ in embeddings.blocks():  # the first reading checks every shard's bytes
        pass
    with new_folder(args.out) as out:
        for split in ("dev", "test"):
            run = args.run / f"{split}.trec"
            batch, taken = RANKED.empty_table(), np.nan
            if run.exists():
                batch, taken = rescored(run, args.encoder, tower, embeddings, args.queries / split, params, device)
                latency[split] = {"milliseconds a query": taken}
            write_table(out / f"{split}.parquet", RANKED, [batch])
    write_json(args.latency, {"device": hardware(device), "depth": params.depth, **latency})


if __name__ == "__main__":
    with stage():
        main()
