"""Exact search: blocked matrix products with a running top-k, in memory that does not depend on the corpus.

A GPU and a CPU each have their way (tasks.core.retrieval.gpu.exact, tasks.core.retrieval.cpu).
Q queries, R rows (a row is a passage of a document), D width, K rows kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.core.retrieval import cpu
from tasks.core.retrieval.cpu import Rounded
from tasks.core.retrieval.embeddings import Block
from tasks.core.retrieval.gpu.exact import rows_at_once, search
from tasks.core.retrieval.ranked import MARGIN, Floats
from tasks.core.stage.devices import compute_dtype
from tasks.core.stage.errors import UserError
from tasks.core.tables.ids import Ints

ROWS = 4096  # of a CPU's block, whatever shards it is read from: for every further shape oneDNN compiles and keeps another product


@dataclass(frozen=True)
class Reread:
    """Blocks that may be passed over more than once: `read` begins from the first."""

    read: Callable[[], Iterator[tuple[int, Block | torch.Tensor]]]

    def __iter__(self) -> Iterator[tuple[int, Block | torch.Tensor]]:
        return self.read()


def exact_search(
    queries_QD: Floats,
    blocks: Iterable[tuple[int, Block | torch.Tensor]],
    k: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
    known: dict[int, Rounded] | None = None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product: scores float32 [Q, k + MARGIN] and rows int64 [Q, k + MARGIN].

    `blocks` are (first row, vectors [R_b, D]), in order and without gaps, or tensors, which are taken as they are, on `device`,
    float32, and finite. A GPU may pass over them twice. Where there are fewer rows, scores are -inf and rows -1. `done` is called
    with the number of rows that were just searched; `known` is `tasks.core.retrieval.cpu.search`'s. UserError for a vector that is
    not finite.
    """
    keep = k + MARGIN
    if device.type == "cuda":
        return search(queries_QD, blocks, keep, device, done, rows=rows_at_once(queries_QD.shape[1], device))
    queries = torch.from_numpy(np.ascontiguousarray(queries_QD))
    return cpu.search(queries, _even(blocks), keep, compute_dtype(device, "bf16"), done, known)


def _even(blocks: Iterable[tuple[int, Block | torch.Tensor]]) -> Iterator[tuple[int, torch.Tensor]]:
    """The same rows in blocks of ROWS, fewer at the end; tensors as they are."""
    parts: list[Block] = []
    begin = end = 0  # of `parts`
    for first, block in blocks:
        if isinstance(block, torch.Tensor):
            yield first, block
            continue
        assert first == end, "blocks in order, without gaps"
        while len(block):
            parts.append(block[: begin + ROWS - end])
            block, end = block[len(parts[-1]) :], end + len(parts[-1])
            if end - begin == ROWS:
                yield begin, finite(begin, parts)
                parts, begin = [], end
    if parts:
        yield begin, finite(begin, parts)


def finite(first: int, parts: list[Block]) -> torch.Tensor:
    """Vectors of the rows from `first` on, a copy in float32; UserError for one that is not finite."""
    vectors_RD = torch.from_numpy(np.concatenate(parts, dtype=np.float32))
    if not torch.isfinite(vectors_RD.sum()) and not torch.isfinite(vectors_RD).all():  # the sum is faster
        last = first + len(vectors_RD) - 1
        raise UserError(f"vectors of rows {first} to {last}: found NaN or infinity; train or encode that model again")
    return vectors_RD
