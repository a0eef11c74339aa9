"""Ranked lists to runs and metrics of one system on dev and test: of candidates as they are, or of an encoder by exact search."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tasks.core.entry import parser, stage
from tasks.core.errors import UserError
from tasks.core.files import new_folder, write_json
from tasks.core.params import load
from tasks.core.records import QRELS, RANKED
from tasks.core.tables import read_batches, read_table
from tasks.evaluate.measures import parse, read_qrels
from tasks.evaluate.params import Evaluate
from tasks.evaluate.split import evaluate_split

SPLITS = ("dev", "test")


def arguments() -> Namespace:
    """The command line: --candidates, or --encoder, --embeddings and --tokens."""
    known = parser(__doc__, qrels="folder of the splits' qrels", runs="run folder to write", metrics="JSON file to write")
    known.add_argument("--name", required=True, help="the system's name, the tag of its runs")
    known.add_argument("--candidates", type=Path, help="folder of ranked lists, SPLIT.parquet")
    for name, text in {"encoder": "encoder folder", "embeddings": "its document vectors", "tokens": "token folder"}.items():
        known.add_argument(f"--{name}", type=Path, help=f"{text}, in place of --candidates")
    given = known.parse_args()
    if bool(given.candidates) == all((given.encoder, given.embeddings, given.tokens)):
        known.error("expected either --candidates, or all of --encoder, --embeddings and --tokens")
    return given


def ranked_lists(given: Namespace, split: str, params: Evaluate) -> Iterable[pa.RecordBatch]:
    """The system's ranked documents for the queries of `split`."""
    if given.candidates:
        return read_batches(given.candidates / f"{split}.parquet", RANKED)
    from tasks.evaluate.dense import dense_run  # imports torch, which the lexical way does without

    return dense_run(given.encoder, given.embeddings, given.tokens, split, params)


def main() -> None:
    given, params = arguments(), load(Evaluate, "evaluate")
    measures = parse(params.measures, params.relevance)
    metrics = {}
    with new_folder(given.runs) as folder:
        for split in SPLITS:
            path = given.qrels / f"{split}.parquet"
            qrels = read_qrels(read_table(path, QRELS), params.relevance) if path.exists() else {}
            if not qrels:
                print(f"{given.name}: {split} has no judged queries and is left out")
                continue
            metrics[split], queries = evaluate_split(ranked_lists(given, split, params), qrels, measures, folder / split, given.name)
            print(
                f"{given.name}: {split}, {queries:,} queries: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics[split].items())
            )
        if not metrics:
            raise UserError(
                f"{given.qrels}: found no relevant document in dev.parquet or test.parquet; expected one of them to be there to evaluate on"
            )
    write_json(given.metrics, metrics)


if __name__ == "__main__":
    with stage():
        main()
