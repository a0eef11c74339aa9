"""Ranked lists to runs and metrics of one system on dev and test: of candidates as they are, or of an encoder by exact search."""

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import new_folder, write_json
from tasks.core.stage.params import load, validate
from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import RANKED
from tasks.evaluate.measures import parse
from tasks.evaluate.params import Evaluate
from tasks.evaluate.runs import without_identical_ids
from tasks.evaluate.split import evaluate_split, load_qrels


def arguments() -> Namespace:
    """The command line: --candidates, or --encoder, --embeddings and --tokens."""
    known = parser(__doc__, qrels="folder of the splits' qrels", runs="run folder to write", metrics="JSON file to write")
    known.add_argument("--name", required=True, help="the system's name, the tag of its runs")
    known.add_argument("--candidates", type=Path, help="folder of ranked lists, SPLIT.parquet")
    for name, text in {"encoder": "encoder folder", "embeddings": "its document vectors", "tokens": "token folder"}.items():
        known.add_argument(f"--{name}", type=Path, help=f"{text}, in place of --candidates")
    known.add_argument("--index", type=Path, help="folder of an index that is searched in place of the document vectors, if it holds one")
    known.add_argument("--ignore-identical-ids", action=BooleanOptionalAction, default=None, help="in place of params.yaml's")
    known.add_argument("--relevance", nargs=2, type=int, metavar=("DEV", "TEST"), help="least grades, in place of params.yaml's")
    given = known.parse_args()
    if bool(given.candidates) == all((given.encoder, given.embeddings, given.tokens)):
        known.error("expected either --candidates, or all of --encoder, --embeddings and --tokens")
    return given


def ranked_lists(given: Namespace, split: str, params: Evaluate) -> Iterable[pa.RecordBatch]:
    """The system's ranked documents for the queries of `split`."""
    ignore = params.ignore_identical_ids
    if given.candidates:
        candidates = read_batches(given.candidates / f"{split}.parquet", RANKED)
        return without_identical_ids(candidates) if ignore else candidates
    from tasks.evaluate.dense import dense_run  # imports torch, which the lexical way does without

    depth = params.depth + ignore  # a query's own document takes the place of another
    lists = dense_run(given.encoder, given.embeddings, given.tokens, split, params.model_copy(update={"depth": depth}), given.index)
    return without_identical_ids(lists, params.depth) if ignore else lists


def main() -> None:
    given, params = arguments(), load(Evaluate, "evaluate")
    if given.ignore_identical_ids is not None:
        params = params.model_copy(update={"ignore_identical_ids": given.ignore_identical_ids})
    if given.relevance:
        asked = {"relevance": dict(zip(("dev", "test"), given.relevance, strict=True))}
        params = validate(Evaluate, params.model_dump() | asked, "--relevance: evaluate")
    metrics = {}
    with new_folder(given.runs) as folder:
        judged = {split: load_qrels(given.qrels / f"{split}.parquet", split, least) for split, least in params.relevance.items()}
        for split, qrels in judged.items():
            if not qrels:
                print(f"{given.name}: {split} has no judged queries and is left out")
                continue
            measures = parse(params.measures, params.relevance[split])
            metrics[split], queries = evaluate_split(ranked_lists(given, split, params), qrels, measures, folder / split, given.name)
            over = f"{queries:,} queries" + (", identical ids left out" if params.ignore_identical_ids else "")
            print(f"{given.name}: {split}, {over}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics[split].items()))
        if not metrics:
            raise UserError(
                f"{given.qrels}: found no relevant document in dev.parquet or test.parquet; expected one of them to be there to evaluate on"
            )
    write_json(given.metrics, metrics)


if __name__ == "__main__":
    with stage():
        main()
