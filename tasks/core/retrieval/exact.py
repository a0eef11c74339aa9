"""Exact search: blocked matrix products with a running top-k, in memory that does not depend on the corpus.

A GPU and a CPU each have their way (tasks.core.retrieval.gpu.exact, tasks.core.retrieval.cpu).
Q queries, R rows (a row is a passage of a document), D width, K rows kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tasks.core.retrieval import cpu
from tasks.core.retrieval.cpu import Rounded
from tasks.core.retrieval.gpu.exact import rows_at_once, search
from tasks.core.retrieval.ranked import MARGIN, Floats
from tasks.core.stage.devices import compute_dtype
from tasks.core.stage.errors import UserError
from tasks.core.tables.ids import Ints


@dataclass(frozen=True)
class Reread:
    """Blocks that may be passed over more than once: `read` begins from the first."""

    read: Callable[[], Iterator[tuple[int, npt.NDArray[np.floating] | torch.Tensor]]]

    def __iter__(self) -> Iterator[tuple[int, npt.NDArray[np.floating] | torch.Tensor]]:
        return self.read()


def exact_search(
    queries_QD: Floats,
    blocks: Iterable[tuple[int, npt.NDArray[np.floating] | torch.Tensor]],
    k: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
    known: dict[int, Rounded] | None = None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product: scores float32 [Q, k + MARGIN] and rows int64 [Q, k + MARGIN].

    `blocks` are (first row, vectors [R_b, D]); tensors are taken as they are, on `device`, float32, and finite. A GPU may pass over
    them twice. Where there are fewer rows, scores are -inf and rows -1. `done` is called with the number of rows of each block;
    `known` is `tasks.core.retrieval.cpu.search`'s. UserError for a vector that is not finite.
    """
    keep = k + MARGIN
    if device.type == "cuda":
        return search(queries_QD, blocks, keep, device, done, rows=rows_at_once(queries_QD.shape[1], device))
    vectors = ((first, block if isinstance(block, torch.Tensor) else finite_block(first, block, device)) for first, block in blocks)
    queries = torch.from_numpy(np.ascontiguousarray(queries_QD))
    return cpu.search(queries, vectors, keep, compute_dtype(device, "bf16"), done, known)


def finite_block(first: int, block: npt.NDArray[np.floating], device: torch.device) -> torch.Tensor:
    """Vectors of the rows from `first` on, float32 on `device`; UserError for one that is not finite."""
    vectors_RD = torch.from_numpy(np.array(block, dtype=np.float32)).to(device)
    if not torch.isfinite(vectors_RD.sum()) and not torch.isfinite(vectors_RD).all():  # the sum is faster
        raise UserError(f"vectors of rows {first} to {first + len(block) - 1}: found NaN or infinity; train or encode that model again")
    return vectors_RD
