"""Rerank the best documents of a run by a cross-encoder's scores, and record the time per query."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tasks.core.files import new_folder, write_json
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.progress import track
from tasks.core.tables.ids import ordinals
from tasks.core.tables.schemas import MEASURED
from tasks.core.text.document import Text
from tasks.core.text.mapped import corpus_texts, query_texts
from tasks.core.trec.runs import best_first, ranked_batch, read_run, write_run
from tasks.core.workers.each import Workers, machine, open_workers
from tasks.rerank.lists import Listed, Model
from tasks.rerank.params import Rerank

QUERIES = 16  # in a piece of work, which takes seconds


def read_lists(run: Path, corpus: Path, depth: int) -> list[Listed]:
    """The best `depth` documents of every query of a run."""
    lists = list(read_run(run, depth))
    documents = pa.chunked_array([[doc for _, docs in lists for doc in docs]], pa.string())
    rows = iter(ordinals(documents, corpus / "documents.parquet").tolist())
    queries = dict(query_texts(corpus, run.stem))
    return [Listed(query, queries[query], docs, [next(rows) for _ in docs]) for query, docs in lists]


def rerank_lists(lists: list[Listed], split: str, model: Model, workers: Workers, seconds: list[float]) -> Iterator[pa.RecordBatch]:
    """The reranked run (schema RANKED), one query at a time. The time of each is appended to `seconds`."""
    pieces = [lists[first : first + QUERIES] for first in range(0, len(lists), QUERIES)]
    results = (result for piece_results in workers.each(model, pieces) for result in piece_results)
    for (query, _, docs, _), (scores, duration) in zip(lists, track(results, f"rerank {split}", len(lists), "queries"), strict=True):
        seconds.append(duration)
        yield ranked_batch([(query, best_first(docs, scores))])


def latency(seconds: list[float]) -> dict[str, float]:
    """Mean, median, and 95th percentile, in milliseconds per query."""
    milliseconds = 1000 * np.array(seconds)
    return {"mean": float(milliseconds.mean()), "p50": float(np.quantile(milliseconds, 0.5)), "p95": float(np.quantile(milliseconds, 0.95))}


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
    params, text = load(Rerank, f"rerank.{args.name}"), load(Text, "text")
    latencies: dict[str, dict[str, float]] = {}
    with (
        open_workers(read_runtime()) as workers,
        new_folder(args.out) as out,
        TemporaryDirectory(dir=out, prefix=".texts") as scratch,
    ):
        worker_machine = workers.agreed(partial(machine, workers.runtime, params.precision))
        file = Path(scratch) / "texts.bin"
        corpus_texts(args.corpus, text, file)
        model = Model(args.reranker, args.corpus, file, params, text, workers.runtime)
        for split in MEASURED:
            run, seconds = args.run / f"{split}.trec", list[float]()
            if not run.exists():
                continue
            lists = read_lists(run, args.corpus, params.depth)
            write_run(out / run.name, rerank_lists(lists, split, model, workers, seconds), args.name)
            if seconds:
                latencies[split] = latency(seconds)
    write_json(args.latency, {"device": worker_machine.hardware, "depth": params.depth, "milliseconds a query": latencies})


if __name__ == "__main__":
    with stage():
        main()
