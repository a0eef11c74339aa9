"""Many queries, encoded and searched for in parts by any number of workers, as mine and retrieve need them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from tasks.core.encoding.encode import Vectors
from tasks.core.files import new_file
from tasks.core.machine.devices import Precision, choose_device
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.ann.search import ShortLists, open_index, refuse_other_scores, search_indexed
from tasks.core.retrieval.embeddings import Embeddings, open_embeddings
from tasks.core.retrieval.gpu.indexes import on_device
from tasks.core.retrieval.passages import best_passages
from tasks.core.retrieval.queries import encode_queries, part_size, search_embeddings
from tasks.core.retrieval.ranked import QUERY_BLOCK, Floats, ranked_tables
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.tables.parquet import open_parquet
from tasks.core.tables.schemas import RANKED
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.workers.each import Workers


@dataclass(frozen=True)
class Parts:
    """Keeps finished arrays and parts in `folder`, and reuses intact ones; without a folder, everything is passed through."""

    folder: Path | None

    def array(self, name: str, make: Callable[[], Floats]) -> Floats:
        """The array that `make` returns, or the stored one, mapped."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.npy"
        if not is_sealed(path):
            with new_file(path) as temporary, temporary.open("wb") as handle:
                np.save(handle, make())
            seal(path)
        stored: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
        return stored

    def tables(self, first: int, tables: Callable[[], Iterator[pa.Table]]) -> Iterator[pa.Table]:
        """The tables (RANKED) of the part whose first query is `first`, with the same boundaries.

        `tables` is called only if the part is not finished.
        """
        if self.folder is None:
            yield from tables()
            return
        path = self.folder / f"{first:09}.parquet"
        if not is_sealed(path):
            with new_file(path) as temporary, pq.ParquetWriter(temporary, RANKED, compression="zstd") as writer:
                for table in tables():
                    writer.write_table(table, row_group_size=max(1, len(table)))  # a table is a group: whole queries stay together
            seal(path)
        with open_parquet(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


@dataclass(frozen=True)
class QuerySearch:
    """The search for the queries of a token folder. Each worker opens what it needs, once."""

    encoder: Path
    queries: Path
    embeddings: Path | None  # exact search, or
    index: Path | None  # the file of a faiss index
    documents: Path  # a folder with ids.parquet and owners.npy
    precision: Precision
    depth: int  # documents that are searched for
    shown: int  # documents of a list, without excluded ones
    size: int  # queries of a part
    runtime: Runtime
    parts: Parts
    excluded: Ints | None = None  # keys query * documents + document
    decoded: str = ""  # if the index must score by its decoded vectors, its name in an error

    def encode(self) -> Vectors:
        """The vectors of the queries, [Q, D], which are encoded only if they are not stored."""
        return self.vectors

    def part(self, first: int) -> Iterator[pa.Table]:
        """The ranked tables of the part whose first query is `first`."""
        return self.parts.tables(first, partial(self._search, first))

    @cached_property
    def tokens(self) -> Tokens:
        return open_tokens(self.queries)

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self.runtime)

    @cached_property
    def vectors(self) -> Vectors:
        return self.parts.array("queries", self._encode)

    @cached_property
    def opened(self) -> Embeddings:
        """The document vectors."""
        assert self.embeddings is not None
        return open_embeddings(self.embeddings)

    @cached_property
    def opened_index(self) -> Any:
        """The faiss index; UserError if it is of other documents or vectors, or does not score as `decoded` wants."""
        assert self.index is not None and self.device is not None  # the device sets the threads
        index = open_index(self.index, len(self.owners), self.vectors.shape[1], threads=torch.get_num_threads())
        if self.decoded:
            refuse_other_scores(index, self.decoded)
        return index

    @cached_property
    def searchable_index(self) -> Any:
        """The index, or its copy on the GPU."""
        return on_device(self.opened_index, self.device)

    @cached_property
    def _ids(self) -> tuple[pa.Array, StoredIds]:
        return self.tokens.ids(), StoredIds(self.documents / "ids.parquet")

    @cached_property
    def owners(self) -> npt.NDArray[np.int32]:
        """The document of every row, [R], mapped."""
        owners: npt.NDArray[np.int32] = np.load(self.documents / "owners.npy", mmap_mode="r", allow_pickle=False)
        return owners

    def _encode(self) -> Vectors:
        return encode_queries(self.encoder, self.tokens, self.precision, self.device)

    def _search(self, first: int) -> Iterator[pa.Table]:
        vectors, (query_ids, ids) = np.array(self.vectors[first : first + self.size]), self._ids
        excluded = None if self.excluded is None else self.excluded - first * len(ids)
        scores, rows = best_passages(self._best, vectors, self.owners, self.depth)
        yield from ranked_tables(scores, rows, query_ids.slice(first, self.size), ids, self.owners, self.shown, excluded)

    def _best(self, vectors: Vectors, rows: int) -> tuple[Floats, Ints]:
        if self.index is None:
            return search_embeddings(vectors, self.opened, rows, self.device)
        return search_indexed(vectors, self.searchable_index, rows)


@dataclass(frozen=True)
class _WritePart:
    """Writes a part to where it is kept; returns its first query."""

    search: QuerySearch

    def __call__(self, first: int) -> int:
        for _ in self.search.part(first):
            pass
        return first


@dataclass(frozen=True)
class _CallMake:
    """Calls `make`, whose result is left in a `Parts`."""

    make: Callable[[], object]

    def __call__(self, _: int) -> None:
        self.make()


def make_once(workers: Workers, make: Callable[[], object]) -> None:
    """Let one of several `workers` call `make`, which leaves an array where all find it. A single worker makes it when it is needed."""
    if not workers.alone:
        for _ in workers.each(_CallMake(make), [0]):
            pass


def search_all(workers: Workers, search: QuerySearch, queries: int) -> Iterator[pa.Table]:
    """The ranked tables of all `queries`, in order, searched for by `workers`. For an index, print a line if lists were short."""
    if search.index is None:
        yield from _searched(workers, search, queries)
        return
    documents = len(StoredIds(search.documents / "ids.parquet"))
    short = ShortLists(min(search.shown, documents - (search.depth - search.shown)))  # those between the two may be excluded
    for table in _searched(workers, search, queries):
        short.count(pc.value_counts(table["query"]).field("counts").to_numpy())
        yield table
    short.count(np.zeros(queries - short.lists, dtype=np.int64))  # queries without results have no rows
    section = f"adore.{search.index.parent.name}" if (search.index.parent / "index.json").exists() else "index"
    short.warn(f"search {search.queries.name}", search.opened_index, f"{section}.")


def _searched(workers: Workers, search: QuerySearch, queries: int) -> Iterator[pa.Table]:
    firsts = range(0, queries, search.size)
    if workers.alone:
        for first in firsts:
            yield from search.part(first)
        return
    progress = Progress("search", queries, "queries")
    for first in workers.each(_WritePart(search), firsts):
        progress.advance(min(search.size, queries - first))
        yield from search.part(first)
    progress.close()


def shared_size(size: int, queries: int, count: int) -> int:
    """How many queries a part has where `count` workers share them: `size` at most, in whole blocks of QUERY_BLOCK.

    A block is computed in the same way in any part, so results do not depend on the number of workers.
    """
    if count == 1 or size % QUERY_BLOCK:
        return size
    share = -(-queries // (2 * count))  # two parts each, as they do not take equally long
    return min(size, max(1, -(-share // QUERY_BLOCK)) * QUERY_BLOCK)


def size_of_parts(rows: int, queries: int, device: str, workers: Workers) -> int:
    """How many of `queries`, with `rows` results each, a worker on `device` searches for at a time."""
    return shared_size(part_size(rows, torch.device(device)), queries, workers.count)


def searchers(runtime: Runtime, *, indexed: bool) -> Runtime:
    """`runtime` for a search. On this machine, one process with all threads searches an index: several would each hold it in memory."""
    return runtime.model_copy(update={"workers": 1}) if indexed and runtime.engine == "local" else runtime
