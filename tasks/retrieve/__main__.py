"""Write the runs of one system on dev and test: from candidates as they are, or by searching an encoder's document vectors."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tasks.core.files import new_folder
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import MEASURED, RANKED
from tasks.core.trec.runs import without_identical_ids, write_run
from tasks.retrieve.params import Retrieve


def arguments() -> Namespace:
    """Parse the command line: either --candidates and --queries, or --encoder, --embeddings, and --tokens."""
    command_line = parser(__doc__, out="run folder to write, SPLIT.trec")
    command_line.add_argument("--name", required=True, help="the system's name, the tag of its runs")
    command_line.add_argument("--candidates", type=Path, help="folder of ranked lists, SPLIT.parquet")
    command_line.add_argument("--queries", type=Path, help="folder of the splits' queries, with --candidates")
    for name, text in {"encoder": "encoder folder", "embeddings": "its document vectors", "tokens": "token folder"}.items():
        command_line.add_argument(f"--{name}", type=Path, help=f"{text}, instead of --candidates")
    command_line.add_argument("--index", type=Path, help="folder of an index to search instead of the document vectors, if it contains one")
    args = command_line.parse_args()
    if all((args.candidates, args.queries)) == all((args.encoder, args.embeddings, args.tokens)):
        command_line.error("expected either --candidates and --queries, or --encoder, --embeddings, and --tokens")
    return args


def queries_of(args: Namespace, split: str) -> int:
    """The number of queries in `split`."""
    if args.candidates:
        return count_rows(args.queries / f"{split}.parquet")
    return count_rows(args.tokens / "queries" / split / "ids.parquet")


def ranked_lists(args: Namespace, split: str, params: Retrieve) -> Iterable[pa.RecordBatch]:
    """The system's ranked documents (schema RANKED) for the queries of `split`."""
    ignore = params.ignore_identical_ids
    if args.candidates:
        candidates = read_batches(args.candidates / f"{split}.parquet", RANKED)
        return without_identical_ids(candidates) if ignore else candidates
    from tasks.retrieve.dense import dense_run  # imports torch, which candidates do not need

    depth = params.depth + ignore  # one more, in case the query's own document is found
    lists = dense_run(args.encoder, args.embeddings, args.tokens, split, params.model_copy(update={"depth": depth}), args.index)
    return without_identical_ids(lists, params.depth) if ignore else lists


def main() -> None:
    args, params = arguments(), load(Retrieve, "retrieve")
    with new_folder(args.out) as folder:
        for split in MEASURED:
            queries = queries_of(args, split)
            if not queries:
                print(f"{args.name}: {split} has no queries, skipped")
                continue
            documents = write_run(folder / f"{split}.trec", ranked_lists(args, split, params), args.name)
            ignored = ", identical ids excluded" if params.ignore_identical_ids else ""
            print(f"{args.name}: {split}, {counted(queries, 'queries')}, {counted(documents, 'documents')}{ignored}")


if __name__ == "__main__":
    with stage():
        main()
