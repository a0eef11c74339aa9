"""The run of a bi-encoder: queries encoded, the whole corpus searched exactly."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tasks.core.devices import choose_device, read_runtime
from tasks.core.embeddings import open_embeddings
from tasks.core.queries import encode_queries, ranked_queries, search_embeddings
from tasks.core.search import rows_needed
from tasks.core.tables import BATCH_ROWS
from tasks.core.tokens import StoredIds, open_tokens
from tasks.evaluate.params import Evaluate


def dense_run(encoder: Path, embeddings: Path, tokens: Path, split: str, params: Evaluate) -> Iterator[pa.RecordBatch]:
    """The best `params.depth` documents of every query of `split`: schema RANKED, by query, then rank; a part at a time."""
    queries = open_tokens(tokens / "queries" / split)
    if not len(queries):
        return
    device = choose_device(read_runtime())
    corpus = open_embeddings(embeddings)
    owners, ids = corpus.owners(), StoredIds(embeddings / "ids.parquet")
    vectors = encode_queries(encoder, queries, params.precision, device)
    tables = ranked_queries(
        vectors,
        lambda part: search_embeddings(part, corpus, params.depth, device),
        rows_needed(params.depth, owners),
        queries.ids(),
        ids,
        owners,
        params.depth,
    )
    for table in tables:
        yield from table.to_batches(BATCH_ROWS)
