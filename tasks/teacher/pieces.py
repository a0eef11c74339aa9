"""Score many pairs, piece by piece. A kill loses only the pieces in progress."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.files import new_file
from tasks.core.machine.devices import choose_device, compute_dtype
from tasks.core.models.cross_encoder import CrossEncoder, load_cross_encoder
from tasks.core.params.runtime import Runtime
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.ids import ordinals
from tasks.core.text.document import Text
from tasks.core.text.mapped import Texts, corpus_texts, query_texts
from tasks.core.workers.each import Workers
from tasks.teacher.params import Teacher

PIECE = 8192  # pairs
TEXT = 2**24  # characters of text at a time; tokenized, they take about 20 times as much memory
Floats = npt.NDArray[np.float32]
Pair = tuple[str, str]


class Piece(NamedTuple):
    """A group of pairs, queries by id and documents by ordinal, and the file for their scores."""

    path: Path
    queries: list[str]
    places: list[int]


class Scored(NamedTuple):
    """The number of pairs in a piece, and whether they were scored now, rather than found on disk."""

    pairs: int
    fresh: bool


class Scores(Protocol):
    """The model that scores a piece's pairs."""

    def texts(self, query: str, place: int) -> Pair: ...

    def scores(self, pairs: list[Pair]) -> Floats: ...


@dataclass(frozen=True)
class Model:
    """A cross-encoder and the texts of a corpus, both opened at first use."""

    reranker: Path
    corpus: Path
    file: Path  # the documents' texts, as corpus_texts wrote them
    params: Teacher
    text: Text
    runtime: Runtime

    def texts(self, query: str, place: int) -> Pair:
        documents, queries = self._opened
        return queries[query], documents[place]

    def scores(self, pairs: list[Pair]) -> Floats:
        return self._model.scores(pairs)

    @cached_property
    def _opened(self) -> tuple[Texts, dict[str, str]]:
        return corpus_texts(self.corpus, self.text, self.file), dict(query_texts(self.corpus, "train"))

    @cached_property
    def _model(self) -> CrossEncoder:
        device = choose_device(self.runtime)
        dtype = compute_dtype(device, self.params.precision)
        return load_cross_encoder(self.reranker, self.params.max_length, self.params.batch_tokens, device, dtype)


@dataclass(frozen=True)
class Score:
    """Writes and seals the scores of a piece, unless intact ones exist."""

    model: Scores

    def __call__(self, piece: Piece) -> Scored:
        if is_sealed(piece.path):
            return Scored(len(piece.places), False)
        scores = np.concatenate([self.model.scores(pairs) for pairs in self._pairs(piece)])
        with new_file(piece.path) as temporary, temporary.open("wb") as handle:
            np.save(handle, scores)
        seal(piece.path)
        return Scored(len(piece.places), True)

    def _pairs(self, piece: Piece) -> Iterator[list[Pair]]:
        """The texts of a piece's pairs, in order, in batches of about TEXT characters."""
        batch, size = list[Pair](), 0
        for query, place in zip(piece.queries, piece.places, strict=True):
            batch.append(self.model.texts(query, place))
            size += sum(map(len, batch[-1]))
            if size >= TEXT:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


@dataclass
class _PendingTable:
    """A table whose scores are being computed: the files of its pieces, and how many are still missing."""

    table: pa.Table
    paths: list[Path]
    missing: int


class Pieces:
    """Scores tables of pairs (query, doc). Scores of finished pieces are kept in `scratch`, and reused if intact."""

    def __init__(self, total: int, documents: Path, scratch: Path) -> None:
        """`total`: the number of all pairs. `documents`: the corpus's file of documents."""
        self.documents, self.scratch = documents, scratch
        self.progress = Progress("teacher", total, "pairs")
        self.piece_count = 0

    def scored(self, tables: Iterable[pa.Table], workers: Workers, score: Callable[[Piece], Scored]) -> Iterator[tuple[pa.Table, Floats]]:
        """Yield each table and the scores of its rows, [len(table)]. Tables must come in the same order every time."""
        pending: deque[_PendingTable] = deque()

        def pieces() -> Iterator[Piece]:
            for table in tables:
                table_pieces = list(self._cut(table))
                pending.append(_PendingTable(table, [piece.path for piece in table_pieces], len(table_pieces)))
                yield from table_pieces

        for finished in workers.each(score, pieces()):
            (self.progress.advance if finished.fresh else self.progress.skip)(finished.pairs)
            next(entry for entry in pending if entry.missing).missing -= 1
            yield from _finished_tables(pending)
        yield from _finished_tables(pending)  # tables without rows at the end

    def _cut(self, table: pa.Table) -> Iterator[Piece]:
        rows = ordinals(table["doc"], self.documents)
        for start in range(0, len(table), PIECE):
            queries, places = table["query"].slice(start, PIECE).to_pylist(), rows[start : start + PIECE].tolist()
            yield Piece(self.scratch / f"{self.piece_count:06}.npy", queries, places)
            self.piece_count += 1


def _finished_tables(pending: deque[_PendingTable]) -> Iterator[tuple[pa.Table, Floats]]:
    """Take the first tables in `pending` that have all their pieces, with their scores."""
    while pending and not pending[0].missing:
        first = pending.popleft()
        pieces = [np.empty(0, dtype=np.float32), *(np.load(path, allow_pickle=False) for path in first.paths)]
        yield first.table, np.concatenate(pieces)
