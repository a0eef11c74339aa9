"""Layers of an encoder built like BERT over rows without padding, on a GPU: attention is torch's flash attention over many lengths."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from tasks.core.machine.devices import has_flash_attention, to_device
from tasks.core.models.hidden_states.unpadded_rows import first_places, round_up
from tasks.core.tables.ids import Ints

WIDEST = 256  # width of an attention head


def has_varlen_layers(transformer: Any, device: torch.device) -> bool:
    """Whether `device` has such attention for `transformer`, in its dtype."""
    width = transformer.config.hidden_size // transformer.config.num_attention_heads
    if not has_flash_attention(device) or transformer.dtype not in (torch.bfloat16, torch.float16):
        return False
    return bool(width % 8 == 0 and width <= WIDEST)


def varlen_layers(
    transformer: Any, products: list[tuple[torch.Tensor, torch.Tensor]], first_only: bool = False
) -> Callable[[torch.Tensor, Ints], torch.Tensor]:
    """A function from embeddings [T, H] and the rows' lengths [B] to last hidden states [T, H].

    With `first_only`, it returns only those of the rows' first tokens, [R, H], of which those after the first B are spare. `products`: each
    layer's joint query, key, value.
    """
    heads = transformer.config.num_attention_heads

    def forward(x_TH: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        ends = to_device(torch.from_numpy(np.concatenate([[0], lengths_B.cumsum()]).astype(np.int32)), x_TH.device)
        longest = int(lengths_B.max())
        for layer, (weight_KH, bias_K) in zip(transformer.encoder.layer, products, strict=True):
            q, k, v = F.linear(x_TH, weight_KH, bias_K).view(len(x_TH), 3, heads, -1).unbind(1)
            if first_only and layer is transformer.encoder.layer[-1]:
                first_R = to_device(torch.from_numpy(first_places(lengths_B, round_up(len(lengths_B)))), x_TH.device)
                x_TH, q = x_TH[first_R], q[first_R[: len(lengths_B)]]
                context_TH: Any = varlen_attn(q, k, v, torch.arange(len(ends), dtype=torch.int32, device=x_TH.device), ends, 1, longest)
                context_TH = F.pad(context_TH, (0, 0, 0, 0, 0, len(x_TH) - len(context_TH)))
            else:
                context_TH = varlen_attn(q, k, v, ends, ends, longest, longest)
            mixed, inner, outer = layer.attention.output, layer.intermediate, layer.output
            x_TH = mixed.LayerNorm(mixed.dense(context_TH.flatten(1)) + x_TH)
            x_TH = outer.LayerNorm(outer.dense(inner.intermediate_act_fn(inner.dense(x_TH))) + x_TH)
        return x_TH

    return forward
