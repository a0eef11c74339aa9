"""The run of a bi-encoder: encode the queries and search the whole corpus exactly."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import torch

from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.encode import Vectors
from tasks.core.retrieval.faiss_search import open_index, search_indexed
from tasks.core.retrieval.gpu.indexes import on_device
from tasks.core.retrieval.queries import encode_queries, part_size, ranked_queries, search_embeddings
from tasks.core.retrieval.ranked import Floats, rows_needed
from tasks.core.stage.devices import choose_device, read_runtime
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.tables.parquet import BATCH_ROWS
from tasks.core.text.tokens import open_tokens
from tasks.retrieve.params import Retrieve


def dense_run(
    encoder: Path, embeddings: Path, tokens: Path, split: str, params: Retrieve, index: Path | None = None
) -> Iterator[pa.RecordBatch]:
    """The best `params.depth` documents for every query of `split`: schema RANKED, by query, then rank; a part at a time.

    The search is exact, or uses the faiss index in folder `index` if there is one.
    """
    queries = open_tokens(tokens / "queries" / split)
    if not len(queries):
        return
    device = choose_device(read_runtime())
    corpus = open_embeddings(embeddings)
    owners, ids = corpus.owners(), StoredIds(embeddings / "ids.parquet")
    vectors = encode_queries(encoder, queries, params.precision, device)
    rows = rows_needed(params.depth, owners)
    size = part_size(rows, device)
    search: Callable[[Vectors], tuple[Floats, Ints]] = partial(search_embeddings, embeddings=corpus, depth=params.depth, device=device)
    if index and (index / "index.faiss").exists():
        opened = open_index(index / "index.faiss", len(corpus), corpus.manifest.width, threads=torch.get_num_threads())
        search = partial(search_indexed, index=on_device(opened, device), depth=rows)
    tables = ranked_queries(
        vectors,
        search,
        rows,
        queries.ids(),
        ids,
        owners,
        params.depth,
        size=size,
    )
    for table in tables:
        yield from table.to_batches(BATCH_ROWS)
