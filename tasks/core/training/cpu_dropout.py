"""Dropout on a CPU at a small fraction of its usual cost.

torch draws a CPU's masks one element after another on one thread: 13% of an fp32 training step of MiniLM, and a larger share where matrix
products are faster. Here an element costs 16 bits of SFC64 and a comparison, which torch spreads over its threads.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LEVELS = 1 << 16  # probabilities are rounded to multiples of 1 / this


class CheapDropout(TorchFunctionMode):
    """Within this context, `F.dropout` and the dropout of `F.scaled_dot_product_attention` draw a CPU's masks this way.

    Everything else, and everything on a GPU, is torch's. A mask is drawn from a seed of torch's own generator, so after
    `torch.manual_seed` the same calls give the same masks.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout and args[0].device.type == "cpu":
            return dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and args[0].device.type == "cpu" and kwargs.get("dropout_p", 0.0) > 0:
            return attention(*args, **kwargs)
        return func(*args, **kwargs)


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """`F.dropout`: each element is 0 with probability `p` (in 65,536ths), otherwise divided by the probability of being kept."""
    dropped = round(p * LEVELS)
    if inplace or not training or not 0 < dropped < LEVELS:
        return F.dropout(x, p, training, inplace)
    seed = int(torch.randint(2**63 - 1, ()))
    raw = np.random.SFC64(seed).random_raw(-(-x.numel() // 4)).view(np.int16)[: x.numel()]
    kept = torch.from_numpy(raw).view(x.shape) >= dropped - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    """`F.scaled_dot_product_attention` of query [..., L, D], key [..., S, D] and value [..., S, V], by its definition: [..., L, V].

    As in torch, a query that may see no key gets zeros. Padding far behind a text is such a query in a layer with window attention.
    """
    if is_causal or any(others.values()):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, **others
        )
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    if attn_mask is not None:
        scores = scores.masked_fill_(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    shares = scores.softmax(-1)
    if attn_mask is not None and attn_mask.dtype == torch.bool and not (sees := attn_mask.any(-1, keepdim=True)).all():
        shares = shares.masked_fill(~sees, 0.0)  # a softmax of nothing is NaN; its gradient ends at the mask above
    return dropout(shares, dropout_p) @ value
