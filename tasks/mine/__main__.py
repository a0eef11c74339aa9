"""The top documents of every training query, without known positives and their duplicates: hard negatives for later rounds."""

from contextlib import ExitStack
from functools import partial

import numpy as np

from tasks.core.retrieval.parts import Parts, QuerySearch, make_first, searched, searchers, size_of_parts
from tasks.core.retrieval.passages import rows_at_first
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError, counted
from tasks.core.stage.files import new_folder
from tasks.core.stage.params import load
from tasks.core.stage.runtime import read_runtime
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.tables.ids import StoredIds
from tasks.core.tables.judgments import relevant_pairs, with_same_texts
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED
from tasks.core.text.same_texts import near_duplicates, same_texts
from tasks.core.text.tokens import open_tokens
from tasks.core.workers.each import machine, open_workers, worker_files
from tasks.mine.guard import guarded, ranked_positives, thresholds
from tasks.mine.params import Mine
from tasks.mine.positives import Positives


def main() -> None:
    arguments = parser(
        __doc__ or "",
        vectors="embedding folder (exact search) or index folder",
        encoder="encoder folder",
        documents="token folder of the documents, for their ids",
        queries="token folder of the training queries",
        qrels="training qrels",
        out="folder of negatives to write",
    )
    arguments.add_argument("--name", required=True, help="the entry of `mine`")
    args = arguments.parse_args()
    params = load(Mine, f"mine.{args.name}")
    indexed = params.search == "indexes"
    documents, queries = open_tokens(args.documents), open_tokens(args.queries)
    ids = StoredIds(args.documents / "ids.parquet")
    query, document = np.unique(np.stack(relevant_pairs(args.qrels, args.queries / "ids.parquet", ids.path)), axis=1)
    known_query, known_document = with_same_texts(query, document, same_texts(queries, query), same_texts(documents, document))
    known = known_query * len(ids) + known_document
    depth = params.depth + params.skip + int(np.bincount(known_query).max(initial=0))
    rows = rows_at_first(depth, documents.owners)
    with open_workers(searchers(read_runtime(), indexed=indexed)) as workers, ExitStack() as files:
        made = workers.agreed(partial(machine, workers.runtime, params.precision))
        size = size_of_parts(rows, len(queries), "cpu" if indexed else made.device, workers)
        scratch = None
        if len(queries) > size:  # otherwise a kill costs less than a digest of all inputs
            digest = work_digest(
                params.model_dump(),
                size,
                made.dtype,
                made.hardware,
                code_digest("mine"),
                args.vectors / ("index.faiss" if indexed else "manifest.json"),  # the manifest: digests of shards
                args.encoder,
                ids.path,
                args.documents / "owners.npy",
                *near_duplicates(args.documents),
                args.queries,
                args.qrels,
            )
            scratch = scratch_folder(f"mine-{args.name}", digest)
        folder = scratch or (None if workers.alone else files.enter_context(worker_files(f"mine-{args.name}")))
        parts = Parts(folder)
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
            parts=parts,
            excluded=known,
            decoded=f"params.yaml: mine.{args.name}.search: indexes",
        )
        positives = Positives(search, query, document)
        for make in (search.encode, positives.scores):
            make_first(workers, make)
        own = positives.scores()
        bound = thresholds(query, own, len(queries), params.relative_margin, params.absolute_margin)
        with new_folder(args.out) as out:
            tables = searched(workers, search, len(queries))
            rows_kept = write_table(out / "train.parquet", RANKED, guarded(tables, bound, queries.ids(), params.depth, params.skip))
            if not rows_kept and len(queries) and not params.keeps_first_ranks:
                raise UserError(
                    f"params.yaml: mine.{args.name}: found no negative for any of {len(queries):,} queries in {len(ids):,} documents, "
                    "expected some; lower skip or the margins"
                )
            write_table(out / "positives.parquet", RANKED, [ranked_positives(query, document, own, queries.ids(), ids)])
    if params.depth > len(ids):
        print(
            f"mine {args.name}: depth {params.depth} exceeds the corpus ({counted(len(ids), 'documents')}); "
            "all but known positives are kept"
        )
    if len(known) > len(query):
        print(f"mine {args.name}: {counted(len(known) - len(query), 'pairs excluded for having the texts of known positives')}")
    print(f"mine {args.name}: {counted(rows_kept, 'negatives')} for {counted(len(queries), 'queries')}")
    if scratch:
        finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
