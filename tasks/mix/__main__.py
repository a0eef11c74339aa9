"""Two sources of negatives interleaved in a ratio."""

from pathlib import Path

import numpy as np

from tasks.core.errors import UserError
from tasks.core.files import new_folder
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.progress import track
from tasks.core.tables.ids import read_ids
from tasks.core.tables.judgments import relevant_pairs
from tasks.core.tables.parquet import count_rows, write_table
from tasks.core.tables.schemas import RANKED
from tasks.mix.interleave import Source, Table, mix_negatives, random_source
from tasks.mix.params import Mix


def random_of(documents: Path, queries: Path, qrels: Path, params: Mix) -> Source:
    """The random source over a corpus. It never gives a query one of its positives."""
    positives: dict[int, set[int]] = {}
    for query, document in np.stack(relevant_pairs(qrels, queries, documents), axis=1).tolist():
        positives.setdefault(query, set()).add(document)
    return random_source(read_ids(documents), positives, params.depth, params.seed)


def main() -> None:
    arguments = parser(
        __doc__ or "",
        first="folder of negatives",
        second="folder of negatives",
        documents="token folder of the documents, for their ids",
        queries="token folder of the training queries, for their ids",
        qrels="training qrels",
        out="folder of negatives to write",
    )
    arguments.add_argument("--name", required=True, help="the entry of `mix`")
    args = arguments.parse_args()
    params = load(Mix, f"mix.{args.name}")
    ids = args.queries / "ids.parquet"
    tables = {name: Table(folder / "train.parquet") for name, folder in ((params.first, args.first), (params.second, args.second))}
    random_negatives = random_of(args.documents / "ids.parquet", ids, args.qrels, params) if "random" in tables else None
    first, second = (random_negatives if name == "random" and random_negatives else tables[name] for name in (params.first, params.second))
    with new_folder(args.out) as out:
        queries = track(read_ids(ids).to_pylist(), f"mix {args.name}", count_rows(ids), "queries")
        rows = write_table(out / "train.parquet", RANKED, mix_negatives(queries, first, second, params.ratio, params.depth))
        for table in tables.values():
            table.close()
        if not rows and len(read_ids(ids)):
            raise UserError(
                f"mix {args.name}: {params.first} and {params.second} have no negatives for any training query; name other sources"
            )
    print(f"mix {args.name}: {counted(rows, 'negatives')}")


if __name__ == "__main__":
    with stage():
        main()
