"""Chunks of articles as tokens, written by chunk, read by pretrain: a token folder (tasks.core.tokens.folder) that knows its sentences.

Beside the token folder's files: sentences.bin (uint16, the position in its row of each sentence's first token, row by row: 1 is
the token after [CLS]) and sentence_offsets.npy (int64, rows + 1).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens, open_tokens

SENTENCES, OFFSETS = "sentences.bin", "sentence_offsets.npy"
PLACE = np.dtype(np.uint16)  # so a row is shorter than 65,536 tokens


@dataclass(frozen=True)
class Chunks:
    """R chunks: [CLS], whole sentences of one article, [SEP]. Everything is on disk until it is read."""

    tokens: Tokens
    sentence_flat: npt.NDArray[np.uint16]
    sentence_offsets: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sentence_counts(self) -> Ints:
        """Sentences of every chunk, [R]."""
        counts: Ints = np.diff(self.sentence_offsets)
        return counts

    def row(self, row: int) -> Ints:
        """Token ids of one chunk, special tokens included."""
        return self.tokens.flat[self.tokens.offsets[row] : self.tokens.offsets[row + 1]].astype(np.int64)

    def sentences(self, row: int) -> Ints:
        """Where each sentence of a chunk begins, and where the last one ends: [sentences + 1]."""
        starts = self.sentence_flat[self.sentence_offsets[row] : self.sentence_offsets[row + 1]].astype(np.int64)
        end = int(self.tokens.offsets[row + 1] - self.tokens.offsets[row]) - 1
        bounds: Ints = np.append(starts, end)
        return bounds


def open_chunks(folder: Path) -> Chunks:
    """Memory-map a folder of chunks; UserError if it is missing or inconsistent."""
    tokens = open_tokens(folder)
    try:
        offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
        size = (folder / SENTENCES).stat().st_size
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{folder}: incomplete chunk folder ({error}); run chunk again") from None
    if len(offsets) != len(tokens) + 1:
        raise UserError(f"{folder / OFFSETS}: {len(offsets)} offsets, expected {len(tokens) + 1}; run chunk again")
    if size != int(offsets[-1]) * PLACE.itemsize:
        raise UserError(f"{folder / SENTENCES}: {size} bytes, expected {int(offsets[-1]) * PLACE.itemsize}; run chunk again")
    flat = np.memmap(folder / SENTENCES, dtype=PLACE, mode="r") if size else np.empty(0, dtype=PLACE)
    return Chunks(tokens, flat, offsets)
