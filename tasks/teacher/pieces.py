"""Scores of many pairs, piece by piece: a kill loses only the piece in progress."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.stage.files import new_file
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import seal, sealed
from tasks.core.tables.ids import ordinals

PIECE = 8192  # pairs
TEXT = 2**24  # characters of their texts at once: tokenized, they take about 20 times as much
Floats = npt.NDArray[np.float32]
Pair = tuple[str, str]


class Pieces:
    """Scores of tables of pairs (query, doc); those of finished pieces are in `scratch`, and reused if intact."""

    def __init__(
        self, total: int, documents: Path, texts: Callable[[str, int], Pair], scores: Callable[[list[Pair]], Floats], scratch: Path
    ) -> None:
        """`total` pairs in all; `texts` returns the texts of a query and of a document by its position in the file `documents`."""
        self.documents, self.texts, self.scores, self.scratch = documents, texts, scores, scratch
        self.progress = Progress("teacher", total, "pairs")
        self.made = 0

    def of(self, table: pa.Table) -> Floats:
        """The score of each row, [len(table)]; tables must come in the same order every time."""
        rows = ordinals(table["doc"], self.documents)
        pieces = [np.empty(0, dtype=np.float32)]
        for start in range(0, len(table), PIECE):
            queries, places = table["query"].slice(start, PIECE).to_pylist(), rows[start : start + PIECE].tolist()
            path = self.scratch / f"{self.made:06}.npy"
            self.made += 1
            if sealed(path):
                self.progress.skip(len(places))
            else:
                found = np.concatenate([self.scores(pairs) for pairs in self._pairs(queries, places)])
                with new_file(path) as temporary, temporary.open("wb") as handle:
                    np.save(handle, found)
                seal(path)
                self.progress.advance(len(places))
            pieces.append(np.load(path, allow_pickle=False))
        return np.concatenate(pieces)

    def _pairs(self, queries: list[str], places: list[int]) -> Iterator[list[Pair]]:
        """The texts of a piece's pairs, in order, until they fill TEXT characters."""
        held, size = list[Pair](), 0
        for query, place in zip(queries, places, strict=True):
            held.append(self.texts(query, place))
            size += sum(map(len, held[-1]))
            if size >= TEXT:
                yield held
                held, size = [], 0
        if held:
            yield held
