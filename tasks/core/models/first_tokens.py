"""The outputs of texts' first tokens, from encoders built like BERT (Devlin et al. 2019). B texts, L tokens, H hidden width, A heads.

For a vector or a score of the first token (the [CLS] of ANCE, STAR, ADORE, COSTA, and most rerankers), the last layer must compute keys and
values of all tokens, but the rest only for the first one: a sixth of the layer's products.
"""

from typing import Any

import torch
from torch.nn import functional as F

from tasks.core.models.pooling import pooled_column
from tasks.core.models.unpadded_rows import first_position


def built_like_bert(transformer: Any) -> bool:
    """Whether a transformer's layers are BERT's, in which every token sees every other."""
    return first_position(transformer.config) is not None and hasattr(transformer, "encoder") and not transformer.config.is_decoder


def first_outputs(transformer: Any, ids_BL: torch.Tensor, mask_BL: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
    """The first tokens' last hidden states [B, H] of a transformer `built_like_bert`. `given` is for its embeddings.

    Padding may be on either side. In training, gradients are those that all tokens' outputs would give; dropout is drawn for fewer numbers.
    """
    seen = None if mask_BL.device.type == "cpu" and mask_BL.all() else mask_BL.bool()[:, None, None]  # where reading it takes no time
    x_BLH = transformer.embeddings(input_ids=ids_BL, **given)
    *earlier, last = transformer.encoder.layer
    for layer in earlier:
        x_BLH = layer(x_BLH, seen)
    own = last.attention.self
    x_B1H = x_BLH[torch.arange(len(x_BLH), device=x_BLH.device), pooled_column(mask_BL, "cls")].unsqueeze(1)
    q, k, v = (
        linear(x).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)
        for linear, x in ((own.query, x_B1H), (own.key, x_BLH), (own.value, x_BLH))
    )
    context_BA1W = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=own.dropout.p if own.training else 0.0)
    mixed_B1H = last.attention.output(context_BA1W.transpose(1, 2).flatten(2), x_B1H)
    outputs_B1H: torch.Tensor = last.output(last.intermediate(mixed_B1H), mixed_B1H)
    return outputs_B1H[:, 0]
