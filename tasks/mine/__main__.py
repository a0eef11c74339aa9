"""The top documents of every training query, without known positives and their duplicates: hard negatives for later rounds."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tasks.core.errors import UserError
from tasks.core.files import new_folder
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.retrieval.parts import Parts, QuerySearch, make_once, search_all, searchers, size_of_parts
from tasks.core.retrieval.passages import rows_at_first
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.tables.judgments import relevant_pairs, with_same_texts
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.same_texts import near_duplicates, same_texts
from tasks.core.workers.each import Machine, machine, open_workers, worker_files
from tasks.mine.guard import filter_negatives, ranked_positives, thresholds
from tasks.mine.params import Mine
from tasks.mine.positives import Positives


def arguments() -> ArgumentParser:
    """The command line."""
    command_line = parser(
        __doc__ or "",
        vectors="embedding folder (exact search) or index folder",
        encoder="encoder folder",
        documents="token folder of the documents, for their ids",
        queries="token folder of the training queries",
        qrels="training qrels",
        out="folder of negatives to write",
    )
    command_line.add_argument("--name", required=True, help="the entry of `mine`")
    return command_line


@dataclass(frozen=True)
class Known:
    """Judged positives as ordinals (`query`, `document`), [P].

    `keys`: query * D + document of each, and of all pairs that have the same texts as one.
    """

    query: Ints
    document: Ints
    keys: Ints
    documents: int  # D

    @property
    def most(self) -> int:
        """The largest number of keys of one query."""
        return int(np.bincount(self.keys // self.documents).max(initial=0))


def known_positives(args: Namespace, documents: Tokens, queries: Tokens, ids: StoredIds) -> Known:
    """The known positives, which no list of negatives may contain."""
    query, document = np.unique(np.stack(relevant_pairs(args.qrels, args.queries / "ids.parquet", ids.path)), axis=1)
    known_query, known_document = with_same_texts(query, document, same_texts(queries, query), same_texts(documents, document))
    return Known(query, document, known_query * len(ids) + known_document, len(ids))


def mining_scratch(args: Namespace, params: Mine, size: int, worker_machine: Machine) -> Path:
    """The scratch folder for finished parts of `size` queries, keyed by a digest of everything that they depend on."""
    digest = work_digest(
        params.model_dump(),
        size,
        worker_machine.dtype,
        worker_machine.hardware,
        code_digest("mine"),
        args.vectors / ("index.faiss" if params.search == "indexes" else "manifest.json"),  # the manifest has the digests of shards
        args.encoder,
        args.documents / "ids.parquet",
        args.documents / "owners.npy",
        *near_duplicates(args.documents),
        args.queries,
        args.qrels,
    )
    return scratch_folder(f"mine-{args.name}", digest)


def mine(args: Namespace, params: Mine, known: Known, *, documents: Tokens, queries: Tokens, ids: StoredIds) -> tuple[int, Path | None]:
    """Write the negatives. Return how many there are, and the scratch folder of finished parts, or None if there was only one part."""
    indexed = params.search == "indexes"
    depth = params.depth + params.skip + known.most
    with open_workers(searchers(read_runtime(), indexed=indexed)) as workers, ExitStack() as files:
        worker_machine = workers.agreed(partial(machine, workers.runtime, params.precision))
        size = size_of_parts(rows_at_first(depth, documents.owners), len(queries), "cpu" if indexed else worker_machine.device, workers)
        # With a single part, a kill costs less than a digest of all inputs.
        scratch = mining_scratch(args, params, size, worker_machine) if len(queries) > size else None
        search = QuerySearch(
            encoder=args.encoder,
            queries=args.queries,
            embeddings=None if indexed else args.vectors,
            index=args.vectors / "index.faiss" if indexed else None,
            documents=args.documents,
            precision=params.precision,
            depth=depth,
            shown=params.depth + params.skip,
            size=size,
            runtime=workers.runtime,
            parts=Parts(scratch or (None if workers.alone else files.enter_context(worker_files(f"mine-{args.name}")))),
            excluded=known.keys,
            decoded=f"params.yaml: mine.{args.name}.search: indexes",
        )
        positives = Positives(search, known.query, known.document)
        for make in (search.encode, positives.scores):
            make_once(workers, make)
        positive_scores = positives.scores()
        bound = thresholds(known.query, positive_scores, len(queries), params.relative_margin, params.absolute_margin)
        with new_folder(args.out) as out:
            tables = search_all(workers, search, len(queries))
            rows = write_table(out / "train.parquet", RANKED, filter_negatives(tables, bound, queries.ids(), params.depth, params.skip))
            if not rows and len(queries) and not params.keeps_first_ranks:
                raise UserError(
                    f"params.yaml: mine.{args.name}: found no negative for any of {len(queries):,} queries in {len(ids):,} documents, "
                    "expected some; lower skip or the margins"
                )
            write_table(
                out / "positives.parquet", RANKED, [ranked_positives(known.query, known.document, positive_scores, queries.ids(), ids)]
            )
    return rows, scratch


def main() -> None:
    args = arguments().parse_args()
    params = load(Mine, f"mine.{args.name}")
    documents, queries = open_tokens(args.documents), open_tokens(args.queries)
    ids = StoredIds(args.documents / "ids.parquet")
    known = known_positives(args, documents, queries, ids)
    rows, scratch = mine(args, params, known, documents=documents, queries=queries, ids=ids)
    if params.depth > len(ids):
        print(
            f"mine {args.name}: depth {params.depth} exceeds the corpus ({counted(len(ids), 'documents')}); "
            "all but known positives are kept"
        )
    if duplicates := len(known.keys) - len(known.query):
        print(f"mine {args.name}: {counted(duplicates, 'pairs excluded for having the texts of known positives')}")
    print(f"mine {args.name}: {counted(rows, 'negatives')} for {counted(len(queries), 'queries')}")
    if scratch:
        mark_finished(scratch)


if __name__ == "__main__":
    with stage():
        main()
