"""Vectors that a CPU searches again and again, in memory that does not grow with them.

They are rounded once, into a file that is mapped: the kernel holds as much of it as there is room for. The exact vectors of the few rows
that are scored are read from where they are stored.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tasks.core.retrieval.cpu.exact import Rounded
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints

ROWS = 16384  # of a block: a number that is fast for few queries, and always the same


@dataclass(frozen=True)
class MappedBlock(Rounded):
    """The block of the rows from `first` on, whose exact vectors `take` reads; `exact_XD` is empty."""

    first: int
    take: Callable[[Ints], Floats]

    def exact(self, row_N: Ints) -> tuple[torch.Tensor, Ints]:
        rows, place_N = np.unique(row_N, return_inverse=True)
        return torch.from_numpy(self.take(rows + self.first)), place_N


def keep(
    blocks: Iterable[tuple[int, torch.Tensor]], take: Callable[[Ints], Floats], dtype: torch.dtype, folder: Path
) -> list[tuple[int, Rounded]]:
    """Convert blocks of float32 (first row, vectors [R, D]) to the form that `tasks.core.retrieval.cpu.exact.search` takes.

    `take` gives the exact vectors of any rows, `dtype` is that of the products. The file is in `folder` and has no name, so it ends with
    the process. The first block stays in memory, because a search scores most rows there.
    """
    norms: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # first row of each block, and its norms
    head: Rounded | None = None
    with tempfile.TemporaryFile(dir=folder) as file:
        for first, block_RD in blocks:
            rows = Rounded.of(block_RD, dtype, together=True)
            file.write(rows.values_XD.view(torch.uint8).numpy().data)
            norms.append((first, rows.norm, rows.error))
            head = head or rows
        if head is None:
            return []
        file.flush()
        numbers = np.memmap(file, np.uint8, mode="r")  # once: each map has a file open
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        values_RD = torch.from_numpy(numbers).view(dtype).view(-1, head.values_XD.shape[1])
    rounded: list[tuple[int, Rounded]] = []
    for number, (first, norm, error) in enumerate(norms):
        values_XD = values_RD[first : norms[number + 1][0] if number + 1 < len(norms) else None]
        if dtype == torch.float32:
            rounded.append((first, Rounded(values_XD, values_XD, norm, error)))
        else:
            rounded.append((first, head if not number else MappedBlock(head.exact_XD[:0], values_XD, norm, error, first, take)))
    return rounded
