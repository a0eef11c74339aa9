"""The run of a bi-encoder: queries encoded, the whole corpus searched exactly."""

from pathlib import Path

import pyarrow as pa

from tasks.core.devices import choose_device, read_runtime
from tasks.core.embeddings import open_embeddings
from tasks.core.faiss_index import open_index, search_index
from tasks.core.queries import encode_queries, search_embeddings
from tasks.core.records import RANKED
from tasks.core.search import ranked_tables, rows_needed
from tasks.core.tokens import open_tokens
from tasks.evaluate.params import Evaluate


def dense_run(encoder: Path, embeddings: Path, tokens: Path, split: str, params: Evaluate, index: Path | None = None) -> pa.Table:
    """The best `params.depth` documents of every query of `split`: schema RANKED, by query, then rank.

    Searched exactly, or through the faiss index of folder `index` where that holds one.
    """
    queries = open_tokens(tokens / "queries" / split)
    if not len(queries):
        return RANKED.empty_table()
    device = choose_device(read_runtime())
    corpus = open_embeddings(embeddings)
    vectors = encode_queries(encoder, queries, params.precision, device)
    if index and (index / "index.faiss").exists():
        scores, rows = search_index(open_index(index / "index.faiss"), vectors, rows_needed(params.depth, corpus.owners()))
    else:
        scores, rows = search_embeddings(vectors, corpus, params.depth, device)
    return pa.concat_tables(ranked_tables(scores, rows, queries.ids(), corpus.ids(), corpus.owners(), params.depth))
