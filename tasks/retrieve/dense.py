"""The run of a bi-encoder: encode the queries and search the whole corpus exactly."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pyarrow as pa

from tasks.core.params.runtime import read_runtime
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.parts import Parts, QuerySearch, make_once, search_all, searchers, size_of_parts
from tasks.core.retrieval.passages import rows_at_first
from tasks.core.tables.parquet import BATCH_ROWS
from tasks.core.tokens.folder import open_tokens
from tasks.core.workers.each import machine, open_workers, worker_files
from tasks.retrieve.params import Retrieve


def dense_run(
    encoder: Path, embeddings: Path, tokens: Path, split: str, params: Retrieve, index: Path | None = None
) -> Iterator[pa.RecordBatch]:
    """The best `params.depth` documents for every query of `split`: schema RANKED, by query, then rank, one part at a time.

    The search is exact, unless the folder `index` has a faiss index.
    """
    queries = open_tokens(tokens / "queries" / split)
    if not len(queries):
        return
    corpus = open_embeddings(embeddings)
    file = index / "index.faiss" if index and (index / "index.faiss").exists() else None
    rows = rows_at_first(params.depth, corpus.owners())
    with open_workers(searchers(read_runtime(), indexed=file is not None)) as workers:
        device = workers.agreed(partial(machine, workers.runtime, params.precision)).device
        with nullcontext(None) if workers.alone else worker_files(f"retrieve-{encoder.name}-{split}") as folder:
            search = QuerySearch(
                encoder=encoder,
                queries=queries.folder,
                embeddings=None if file else embeddings,
                index=file,
                documents=embeddings,
                precision=params.precision,
                depth=params.depth,
                shown=params.depth,
                size=size_of_parts(rows, len(queries), device, workers),
                runtime=workers.runtime,
                parts=Parts(folder),
            )
            make_once(workers, search.encode)
            for table in search_all(workers, search, len(queries)):
                yield from table.to_batches(BATCH_ROWS)
