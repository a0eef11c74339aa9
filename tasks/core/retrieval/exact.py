"""Exact search: blocked matrix products with a running top-k, in memory that does not depend on the corpus.

Q queries, R rows (a row is a passage of a document), D width, K rows kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tasks.core.retrieval.gpu.exact import rows_at_once, search
from tasks.core.retrieval.ranked import MARGIN, QUERY_BLOCK, Floats
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
) -> tuple[Floats, Ints]:
    """The rows of largest inner product: scores float32 [Q, k + MARGIN] and rows int64 [Q, k + MARGIN].

    `blocks` are (first row, vectors [R_b, D]); tensors are taken as they are, on `device` and finite. A GPU (see
    tasks.core.retrieval.gpu.exact) may pass over them twice. Where there are fewer
    rows, scores are -inf and rows -1. `done` is called with the number of rows of each block. UserError for a vector that is not finite.
    """
    keep = k + MARGIN
    if device.type == "cuda":
        return search(queries_QD, blocks, keep, device, done, rows=rows_at_once(queries_QD.shape[1], device))
    queries = torch.from_numpy(np.ascontiguousarray(queries_QD)).to(device)
    best = torch.full((len(queries), keep), -torch.inf, device=device)
    best_rows = torch.full((len(queries), keep), -1, dtype=torch.int64, device=device)
    for first, block in blocks:
        vectors_RD = block if isinstance(block, torch.Tensor) else finite_block(first, block, device)
        for start in range(0, len(queries), QUERY_BLOCK):
            part = slice(start, start + QUERY_BLOCK)
            scores_QR = queries[part] @ vectors_RD.T
            better_QR = (scores_QR > best[part, -1:]).cpu().numpy()  # numpy counts them in a fifth of the time that torch takes
            entering = int(np.count_nonzero(better_QR, axis=1).max())  # few after some blocks, which makes topk cheap
            if not entering:
                continue
            scores_QK, rows_QK = scores_QR.topk(min(keep, entering), dim=1)
            scores_QK, order_QK = torch.cat([best[part], scores_QK], dim=1).topk(keep, dim=1)
            best_rows[part] = torch.cat([best_rows[part], rows_QK + first], dim=1).gather(1, order_QK)
            best[part] = scores_QK
        done(len(block))
    return best.cpu().numpy(), best_rows.cpu().numpy()


def finite_block(first: int, block: npt.NDArray[np.floating], device: torch.device) -> torch.Tensor:
    """Vectors of the rows from `first` on, float32 on `device`; UserError for one that is not finite."""
    vectors_RD = torch.from_numpy(np.array(block, dtype=np.float32)).to(device)
    if not torch.isfinite(vectors_RD).all():
        raise UserError(f"vectors of rows {first} to {first + len(block) - 1}: found NaN or infinity; train or encode that model again")
    return vectors_RD
