"""The outputs of texts' first tokens, from encoders built like BERT (Devlin et al. 2019). B texts, L tokens, H hidden width, A heads.

For a vector or a score of the first token (the [CLS] of ANCE, STAR, ADORE, COSTA, and most rerankers), the last layer must compute keys and
values of all tokens, but the rest only for the first one: a sixth of the layer's products.
"""

from typing import Any

import torch
from torch.nn import functional as F

from tasks.core.models.hidden_states.pooling import pooled_column
from tasks.core.models.hidden_states.unpadded_rows import first_position


def built_like_bert(transformer: Any) -> bool:
    """Whether a transformer's layers are BERT's, in which every token sees every other."""
    return first_position(transformer.config) is not None and hasattr(transformer, "encoder") and not transformer.config.is_decoder


def first_outputs(transformer: Any, ids_BL: torch.Tensor, mask_BL: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
    """The first tokens' last hidden states [B, H] of a transformer `built_like_bert`. `others` is for its embeddings.

    Padding may be on either side. In training, gradients are those that all tokens' outputs would give; dropout is drawn for fewer numbers.
    """
    mask = None if mask_BL.device.type == "cpu" and mask_BL.all() else mask_BL.bool()[:, None, None]  # where reading it takes no time
    x_BLH = transformer.embeddings(input_ids=ids_BL, **others)
    *earlier, last = transformer.encoder.layer
    for layer in earlier:
        x_BLH = layer(x_BLH, mask)
    attention = last.attention.self
    x_B1H = x_BLH[torch.arange(len(x_BLH), device=x_BLH.device), pooled_column(mask_BL, "cls")].unsqueeze(1)
    q, k, v = (
        linear(x).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
        for linear, x in ((attention.query, x_B1H), (attention.key, x_BLH), (attention.value, x_BLH))
    )
    context_BA1W = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=attention.dropout.p if attention.training else 0.0)
    mixed_B1H = last.attention.output(context_BA1W.transpose(1, 2).flatten(2), x_B1H)
    outputs_B1H: torch.Tensor = last.output(last.intermediate(mixed_B1H), mixed_B1H)
    return outputs_B1H[:, 0]
