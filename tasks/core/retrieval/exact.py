"""Exact search: blocked matrix products with a running top-k, in memory that does not depend on the corpus.

GPU and CPU have a method each (tasks.core.retrieval.gpu.exact, tasks.core.retrieval.cpu.exact).
Q queries, R rows (a row is a passage of a document), D width, K rows kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from tasks.core.errors import UserError
from tasks.core.machine.devices import compute_dtype
from tasks.core.retrieval.cpu import exact as cpu
from tasks.core.retrieval.cpu.exact import Rounded
from tasks.core.retrieval.embeddings import Block
from tasks.core.retrieval.gpu.exact import rows_at_once, search
from tasks.core.retrieval.ranked import MARGIN, Floats
from tasks.core.tables.ids import Ints

Vectors = TypeVar("Vectors")  # a block's
HEAD = 4  # so many times more rows are in the first block: the more it has, the fewer rows of later ones have to be scored
ROWS = 4096  # of a CPU's block, whatever the size of shards: for every further shape oneDNN compiles and keeps another product


@dataclass(frozen=True)
class Reread(Generic[Vectors]):
    """Blocks that may be passed over more than once: `read` begins from the first."""

    read: Callable[[], Iterator[tuple[int, Vectors]]]

    def __iter__(self) -> Iterator[tuple[int, Vectors]]:
        return self.read()


def exact_search(
    queries_QD: Floats,
    blocks: Iterable[tuple[int, Block]],
    k: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product: scores float32 [Q, k + MARGIN] and rows int64 [Q, k + MARGIN].

    `blocks` are (first row, vectors [R_b, D]), in order and without gaps; a GPU may pass over them twice. Where there are fewer rows,
    scores are -inf and rows -1. `done` is called with the number of rows that were just searched. UserError for a vector that is not
    finite.
    """
    keep = k + MARGIN
    if device.type == "cuda":
        return search(queries_QD, blocks, keep, device, done, rows=rows_at_once(queries_QD.shape[1], device))
    queries, dtype = torch.from_numpy(np.ascontiguousarray(queries_QD)), compute_dtype(device, "bf16")
    rounded = ((first, Rounded.of(block_RD, dtype, together=True)) for first, block_RD in resize_blocks(blocks, ROWS, HEAD * ROWS))
    return cpu.search(queries, rounded, keep, dtype, done)


def resize_blocks(blocks: Iterable[tuple[int, Block]], rows: int, head: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the same vectors as copies in float32: a block of `head` rows, then blocks of `rows`, fewer at the end.

    UserError for a vector that is not finite.
    """
    parts: list[Block] = []
    begin = end = 0  # of `parts`
    for first, block in blocks:
        assert first == end, "blocks in order, without gaps"
        while len(block):
            size = rows if begin else head
            parts.append(block[: begin + size - end])
            block, end = block[len(parts[-1]) :], end + len(parts[-1])
            if end - begin == size:
                yield begin, _finite(begin, parts)
                parts, begin = [], end
    if parts:
        yield begin, _finite(begin, parts)


def _finite(first: int, parts: list[Block]) -> torch.Tensor:
    """Vectors of the rows from `first` on, a copy in float32; UserError for one that is not finite."""
    vectors_RD = torch.from_numpy(np.concatenate(parts, dtype=np.float32))
    if not torch.isfinite(vectors_RD.sum()) and not torch.isfinite(vectors_RD).all():  # the sum is faster
        last = first + len(vectors_RD) - 1
        raise UserError(f"vectors of rows {first} to {last}: found NaN or infinity; train or encode that model again")
    return vectors_RD
