"""Rerank the best documents of a run by a cross-encoder's scores, and record the time per query."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tasks.core.models.cross_encoder import CrossEncoder, load_cross_encoder
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json
from tasks.core.stage.params import load
from tasks.core.stage.progress import track
from tasks.core.tables.ids import ordinals
from tasks.core.tables.schemas import MEASURED
from tasks.core.tables.trec import best_first, ranked_batch, read_run, write_run
from tasks.core.text.document import Text
from tasks.core.text.mapped import Texts, corpus_texts, query_texts
from tasks.rerank.params import Rerank


def reranked(run: Path, corpus: Path, texts: Texts, model: CrossEncoder, depth: int, seconds: list[float]) -> Iterator[pa.RecordBatch]:
    """The reranked run (schema RANKED), one query at a time, as in interactive search; `seconds` gets the time of each."""
    lists = list(read_run(run, depth))
    documents = pa.chunked_array([[doc for _, docs in lists for doc in docs]], pa.string())
    rows = iter(ordinals(documents, corpus / "documents.parquet").tolist())
    queries = dict(query_texts(corpus, run.stem))
    for query, docs in track(lists, f"rerank {run.stem}", len(lists), "queries"):
        pairs = [(queries[query], texts[next(rows)]) for _ in docs]
        started = time.perf_counter()
        scores = model.scores(pairs)
        seconds.append(time.perf_counter() - started)
        yield ranked_batch([(query, best_first(docs, scores.tolist()))])


def latency(seconds: list[float]) -> dict[str, float]:
    """Mean, median, and 95th percentile, in milliseconds per query."""
    taken = 1000 * np.array(seconds)
    return {"mean": float(taken.mean()), "p50": float(np.quantile(taken, 0.5)), "p95": float(np.quantile(taken, 0.95))}


def main() -> None:
    arguments = parser(
        __doc__ or "",
        run="folder of the runs",
        reranker="folder of the cross-encoder",
        corpus="corpus folder",
        out="run folder to write, SPLIT.trec",
        latency="JSON file to write: time per query",
    )
    arguments.add_argument("--name", required=True, help="the entry of `rerank`")
    args = arguments.parse_args()
    params, text, runtime = load(Rerank, f"rerank.{args.name}"), load(Text, "text"), read_runtime()
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    model = load_cross_encoder(args.reranker, params.max_length, params.batch_tokens, device, dtype)
    model.scores([("", "")])  # a device's first products load its kernels, which counts for no query
    taken: dict[str, dict[str, float]] = {}
    with new_folder(args.out) as out, TemporaryDirectory(dir=out, prefix=".texts") as scratch:
        texts = corpus_texts(args.corpus, text, Path(scratch) / "texts.bin")
        for split in MEASURED:
            run, seconds = args.run / f"{split}.trec", list[float]()
            if not run.exists():
                continue
            write_run(out / run.name, reranked(run, args.corpus, texts, model, params.depth, seconds), args.name)
            if seconds:
                taken[split] = latency(seconds)
    write_json(args.latency, {"device": hardware(device), "depth": params.depth, "milliseconds a query": taken})


if __name__ == "__main__":
    with stage():
        main()
