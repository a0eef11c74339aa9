"""How the steps of a training are computed. It changes the last bits of a result alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Compute:
    """On which device, in which dtype, with the graphs of how many tokens kept (0: all are encoded twice), and beside which ranks.

    In a `gang`, a rank encodes its share of the texts, and leaves its share of the gradients.
    """

    device: torch.device
    dtype: torch.dtype
    graph_tokens: int = 0
    gang: "Gang | None" = None
