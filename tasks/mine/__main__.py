"""The top documents of every training query, without known positives and their duplicates: hard negatives for later rounds."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.encode import Vectors
from tasks.core.retrieval.faiss_search import open_index, refuse_other_scores, search_indexed
from tasks.core.retrieval.gpu.indexes import on_device
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.queries import encode_queries, part_size, ranked_queries, search_embeddings
from tasks.core.retrieval.ranked import Floats, rows_needed
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.tables.judgments import relevant_pairs, with_same_texts
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED
from tasks.core.text.tokens import first_of_same, open_tokens
from tasks.mine.guard import best_passages, guarded, ranked_positives, thresholds
from tasks.mine.params import Mine
from tasks.mine.pieces import Pieces


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
    params, runtime = load(Mine, f"mine.{args.name}"), read_runtime()
    device = choose_device(runtime)
    documents, queries = open_tokens(args.documents), open_tokens(args.queries)
    ids = StoredIds(args.documents / "ids.parquet")
    query, document = np.unique(np.stack(relevant_pairs(args.qrels, args.queries / "ids.parquet", ids.path)), axis=1)
    known_query, known_document = with_same_texts(query, document, first_of_same(queries), first_of_same(documents))
    known = known_query * len(ids) + known_document
    depth = params.depth + params.skip + int(np.bincount(known_query).max(initial=0))
    needed = rows_needed(depth, documents.owners)
    size = part_size(needed, device if params.search == "embeddings" else None)
    scratch = None
    if len(queries) > size:  # otherwise a kill costs less than a digest of all inputs
        digest = work_digest(
            params.model_dump(),
            size,
            str(compute_dtype(device, params.precision)),
            hardware(device),
            code_digest("mine"),
            args.vectors / ("manifest.json" if params.search == "embeddings" else "index.faiss"),  # the manifest: digests of shards
            args.encoder,
            ids.path,
            args.documents / "owners.npy",
            args.queries,
            args.qrels,
        )
        scratch = scratch_folder(f"mine-{args.name}", digest)
    pieces = Pieces(scratch)
    vectors = pieces.array("queries", lambda: encode_queries(args.encoder, queries, params.precision, device))
    search: Callable[[Vectors], tuple[Floats, Ints]]
    if params.search == "embeddings":
        embeddings = open_embeddings(args.vectors)
        search = partial(search_embeddings, embeddings=embeddings, depth=depth, device=device)
        own = pieces.array("positives", lambda: embedded_scores(vectors, embeddings, query, document))
    else:
        index = open_index(args.vectors / "index.faiss", len(documents), vectors.shape[1], threads=torch.get_num_threads())
        refuse_other_scores(index, f"params.yaml: mine.{args.name}.search: indexes")
        search = partial(search_indexed, index=on_device(index, device), depth=needed)
        own = pieces.array("positives", lambda: best_passages(index, vectors, query, document, documents.owners))
    bound = thresholds(query, own, len(queries), params.relative_margin, params.absolute_margin)
    with new_folder(args.out) as out:
        shown = params.depth + params.skip
        tables = ranked_queries(vectors, search, needed, queries.ids(), ids, documents.owners, shown, 0, known, size, pieces.part)
        rows_kept = write_table(out / "train.parquet", RANKED, guarded(tables, bound, queries.ids(), params.depth, params.skip))
        write_table(out / "positives.parquet", RANKED, [ranked_positives(query, document, own, queries.ids(), ids)])
    if params.depth > len(ids):
        print(f"mine {args.name}: depth {params.depth} exceeds the corpus ({len(ids)} documents); all but known positives are kept")
    if len(known) > len(query):
        print(f"mine {args.name}: {len(known) - len(query):,} pairs excluded for having the texts of known positives")
    print(f"mine {args.name}: {rows_kept:,} negatives for {len(queries):,} queries")
    if scratch:
        finish(scratch)


if __name__ == "__main__":
    with stage():
        main()
