"""How the steps of a training are computed. This changes only the last bits of a result."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Compute:
    """The device and dtype, how many tokens have their graphs kept (0: all are encoded twice), and the gang, if any.

    In a `gang`, each rank encodes its share of the texts, and leaves its share of the gradients.
    """

    device: torch.device
    dtype: torch.dtype
    graph_tokens: int = 0
    gang: "Gang | None" = None
