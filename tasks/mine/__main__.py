"""The top documents of every training query, known positives removed: hard negatives for later rounds."""

import numpy as np
import pyarrow.compute as pc

from tasks.core.devices import choose_device, read_runtime
from tasks.core.embeddings import open_embeddings
from tasks.core.encoding import Vectors
from tasks.core.entry import parser, stage
from tasks.core.faiss_index import open_index, search_index
from tasks.core.files import new_folder
from tasks.core.params import load
from tasks.core.queries import encode_queries, ranked_queries, search_embeddings
from tasks.core.records import QRELS, RANKED
from tasks.core.search import Floats, rows_needed
from tasks.core.tables import read_table, write_table
from tasks.core.tokens import Ints, StoredIds, open_tokens, ordinals
from tasks.mine.params import Mine


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
    judged = read_table(args.qrels, QRELS)
    judged = judged.filter(pc.greater(judged["grade"], 0))
    query, document = ordinals(judged["query"], args.queries / "ids.parquet"), ordinals(judged["doc"], args.documents / "ids.parquet")
    ids = StoredIds(args.documents / "ids.parquet")
    positives = (query * len(ids) + document)[(query >= 0) & (document >= 0)]
    most = int(np.bincount(query[query >= 0]).max()) if len(positives) else 0
    depth = params.depth + params.skip + most
    vectors = encode_queries(args.encoder, queries, params.precision, device)
    rows = rows_needed(depth, documents.owners)
    found = (
        open_embeddings(args.vectors)
        if params.search == "embeddings"
        else open_index(args.vectors / "index.faiss", len(documents), vectors.shape[1])
    )

    def search(part: Vectors) -> tuple[Floats, Ints]:
        return search_embeddings(part, found, depth, device) if params.search == "embeddings" else search_index(found, part, rows)

    with new_folder(args.out) as out:
        tables = ranked_queries(vectors, search, rows, queries.ids(), ids, documents.owners, params.depth, params.skip, positives)
        write_table(out / "train.parquet", RANKED, tables)


if __name__ == "__main__":
    with stage():
        main()
