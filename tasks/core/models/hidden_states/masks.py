"""Attention masks as transformers take them."""

from typing import Any

import torch

BROADCAST = ("bert", "roberta", "xlm-roberta")  # every token sees every other: no causal mask, no local windows


def attention_mask(mask_BL: torch.Tensor, config: Any) -> torch.Tensor:
    """`mask_BL` as the transformer of `config` should get it.

    transformers reads a mask of two dimensions in every forward pass, to see whether it can be left out; on a GPU that stops the
    program until all work is done. It takes a mask of four dimensions as it is: [B, 1, 1, L], which attention
    broadcasts, where transformers would make [B, 1, L, L]. On a CPU, and for other architectures, `mask_BL` itself.
    """
    if mask_BL.device.type == "cpu" or config.model_type not in BROADCAST or getattr(config, "is_decoder", False):
        return mask_BL
    return mask_BL.bool()[:, None, None, :]
