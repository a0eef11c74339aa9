"""Scores of many pairs, piece by piece: a kill costs the piece it falls into."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.files import new_file
from tasks.core.progress import Progress

PIECE = 8192  # pairs
Floats = npt.NDArray[np.float32]


def score_pieces(
    count: int, pair: Callable[[int], tuple[str, str]], scores: Callable[[list[tuple[str, str]]], Floats], scratch: Path
) -> Floats:
    """The score of each of `count` pairs; finished pieces in `scratch` are taken from there."""
    progress = Progress("teacher", count, "pairs")
    pieces = [np.empty(0, dtype=np.float32)]
    for start in range(0, count, PIECE):
        numbers = range(start, min(start + PIECE, count))
        path = scratch / f"{start // PIECE:06}.npy"
        if path.exists():
            progress.skip(len(numbers))
        else:
            found = scores([pair(n) for n in numbers])
            with new_file(path) as temporary, temporary.open("wb") as handle:
                np.save(handle, found)
            progress.advance(len(numbers))
        pieces.append(np.load(path, allow_pickle=False))
    progress.close()
    return np.concatenate(pieces)
