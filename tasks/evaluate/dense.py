"""The run of a bi-encoder: queries encoded, the whole corpus searched exactly."""

from pathlib import Path

import pyarrow as pa

from tasks.core.devices import choose_device, read_runtime
from tasks.core.embeddings import open_embeddings
from tasks.core.queries import encode_queries, search_embeddings
from tasks.core.records import RANKED
from tasks.core.search import ranked_tables
from tasks.core.tokens import open_tokens
from tasks.evaluate.params import Evaluate


def dense_run(encoder: Path, embeddings: Path, tokens: Path, split: str, params: Evaluate) -> pa.Table:
    """The best `params.depth` documents of every query of `split`: schema RANKED, by query, then rank."""
    queries = open_tokens(tokens / "queries" / split)
    if not len(queries):
        return RANKED.empty_table()
    device = choose_device(read_runtime())
    corpus = open_embeddings(embeddings)
    scores, rows = search_embeddings(encode_queries(encoder, queries, params.precision, device), corpus, params.depth, device)
    return pa.concat_tables(ranked_tables(scores, rows, queries.ids(), corpus.ids(), corpus.owners(), params.depth))
