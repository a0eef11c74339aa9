"""Vectors that a CPU searches again and again, in memory that does not grow with them.

They are rounded once, into a file that is mapped: the kernel holds as much of it as there is room for. The exact vectors of the few rows
that are scored are read from where they are stored.
"""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tasks.core.retrieval.cpu import Rounded
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints

ROWS = 16384  # of a block: so many at once as are fast for few queries, and always the same number


@dataclass(frozen=True)
class Kept(Rounded):
    """The block of the rows from `first` on, whose exact vectors `take` reads; `exact_XD` is empty."""

    first: int
    take: Callable[[Ints], Floats]

    def exact(self, row_N: Ints) -> tuple[torch.Tensor, Ints]:
        rows, place_N = np.unique(row_N, return_inverse=True)
        return torch.from_numpy(self.take(rows + self.first)), place_N


def keep(
    blocks: Iterable[tuple[int, torch.Tensor]], take: Callable[[Ints], Floats], dtype: torch.dtype, folder: Path
) -> list[tuple[int, Rounded]]:
    """Blocks of float32, as (first row, vectors [R, D]), in the form that `tasks.core.retrieval.cpu.search` takes.

    `take` gives the exact vectors of any rows, `dtype` is that of the products. The file is in `folder` and has no name, so it ends with
    the process. The first block stays in memory, for most of what a search scores is there.
    """
    kept: list[tuple[int, Rounded]] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for first, block_RD in blocks:
            rows, start = Rounded.of(block_RD, dtype, together=True), file.tell()
            file.write(rows.values_XD.view(torch.uint8).numpy().data)
            file.flush()
            numbers = np.memmap(file, np.uint8, mode="c", offset=start, shape=(len(block_RD), block_RD.shape[1] * dtype.itemsize))
            values_XD = torch.from_numpy(numbers).view(dtype)  # never written, so no page is copied
            if dtype == torch.float32:
                rows = Rounded(values_XD, values_XD, rows.norm, rows.error)
            elif kept:
                rows = Kept(values_XD[:0].float(), values_XD, rows.norm, rows.error, first, take)
            kept.append((first, rows))
    return kept
