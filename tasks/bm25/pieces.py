"""Search many queries, piece by piece, with one process per core. A kill loses only the pieces in progress."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from tasks.core.files import folder_digest, read_json, write_json
from tasks.core.lexical.search import Query, load, ranked
from tasks.core.machine.processes import map_in_order
from tasks.core.params.runtime import read_runtime
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import RANKED

QUERIES = 1024  # in a piece, seconds of work; fewer queries need no process


class Piece(NamedTuple):
    """A group of queries, and the file for their results."""

    path: Path
    queries: list[Query]


class Searched(NamedTuple):
    """The number of queries in a piece, and whether they were searched now, rather than found on disk."""

    queries: int
    fresh: bool


class MapPieces(Protocol):
    """Call a function on each piece, in processes of this machine or workers of a cluster; results come in order."""

    def __call__(self, function: "Callable[[Piece], Searched]", work: "Iterable[Piece]", /) -> Iterator[Searched]: ...


@contextmanager
def open_workers(processes: int) -> Iterator[MapPieces]:
    """Open the workers that search: `processes` of this machine, or with engine ray all CPUs of the cluster."""
    if read_runtime().engine != "ray":
        yield partial(map_in_order, processes=processes)
        return
    from tasks.core.workers.cluster import open_cpus  # imports torch, which nothing else here needs

    with open_cpus() as workers:
        yield workers.each


def search_all(queries: Iterable[Query], index: Path, depth: int, scratch: Path, progress: Progress, each: MapPieces) -> Iterator[pa.Table]:
    """Ranked documents (schema RANKED) of `queries` in their order, one table per piece, from the saved `index`.

    Pieces are kept in `scratch`, a folder for these queries only. Pieces that are intact there are not searched again. The number
    of processes, which share the mapped index, does not change the result.
    """
    scratch.mkdir(exist_ok=True)
    paths: list[Path] = []

    def pieces() -> Iterator[Piece]:
        remaining = iter(queries)
        while part := list(islice(remaining, QUERIES)):
            paths.append(scratch / f"{len(paths):06}.parquet")
            yield Piece(paths[-1], part)

    for searched in each(partial(search_piece, index=index, depth=depth), pieces()):
        (progress.advance if searched.fresh else progress.skip)(searched.queries)
    progress.close()
    for path in paths:
        yield read_table(path, RANKED)


def search_piece(piece: Piece, index: Path, depth: int) -> Searched:
    """Search a piece's queries, write and seal the results, unless intact ones exist.

    The worker looks, not the stage: NFS remembers for a while that a file was missing, and the stage must find it when it is written.
    """
    if is_sealed(piece.path):
        return Searched(len(piece.queries), False)
    postings, ids, _ = load(index, vocabulary=False)
    write_table(piece.path, RANKED, ranked(piece.queries, postings, ids, depth))
    seal(piece.path)
    return Searched(len(piece.queries), True)


def seal_index(folder: Path) -> None:
    """Mark an index as complete."""
    write_json(_mark(folder), folder_digest(folder))
    seal(_mark(folder))


def is_complete(folder: Path) -> bool:
    """Whether an index is complete and unchanged since it was sealed."""
    return folder.is_dir() and is_sealed(_mark(folder)) and read_json(_mark(folder)) == folder_digest(folder)


def _mark(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")
