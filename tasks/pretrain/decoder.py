"""RetroMAE's decoder (Xiao, Liu, Shao, Cao: EMNLP 2022, arXiv:2205.12035, section 3.2), with enhanced decoding.

One Transformer layer with two streams. The query of each position is the text's vector plus a position embedding (H1, Eq. 5). It attends
to the text's vector and a random sample of the tokens (H2, Eq. 6; the mask of Eq. 7), but never to the token that it predicts. The sample
is too small to predict from, so the vector learns to carry the rest. The decoder is discarded after the pre-training.

B texts, L tokens, H width, A heads.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from tasks.core.errors import UserError
from tasks.core.tables.ids import Ints
from tasks.pretrain.words import Bools, Vocabulary

SETTINGS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "layer_norm_eps",
    "hidden_act",
    "hidden_dropout_prob",
    "initializer_range",
)  # settings of the layer, by their names in BERT's configuration


def decoder_mask(ids: Ints, vocabulary: Vocabulary, share: float, rng: np.random.Generator) -> Bools:
    """Eq. 7 as a mask [L, L]: which positions j position i sees. It never sees its own token, but all see the first (the text's vector).

    Other special tokens are always seen. Each remaining token is hidden with probability `share`, drawn separately for each i, as in the
    paper. The released code hides whole words, by one of at most 256 draws of a text.
    """
    seen: Bools = (rng.random((len(ids), len(ids))) >= share) | vocabulary.special[ids]
    np.fill_diagonal(seen, False)
    seen[:, 0] = True
    return seen


class Decoder(nn.Module):
    """Attention from H1 to H2, added to H1 (Eq. 8), then a feed-forward layer, each with a layer norm as in BERT."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.attended, self.finished = (nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in range(2))
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = config.hidden_dropout_prob
        self.spread = config.initializer_range

    def draw(self, generator: torch.Generator) -> None:
        """Draw new weights as BERT does: N(0, initializer_range), biases 0."""
        for part in (self.query, self.key, self.value, self.out, self.up, self.down):
            nn.init.normal_(part.weight, std=self.spread, generator=generator)
            nn.init.zeros_(part.bias)

    def forward(self, asking_BLH: torch.Tensor, context_BLH: torch.Tensor, visible_BLL: torch.Tensor) -> torch.Tensor:
        """Outputs [B, L, H] from H1, H2, and the mask."""

        def split(states_BLH: torch.Tensor) -> torch.Tensor:
            return states_BLH.view(*states_BLH.shape[:2], self.heads, -1).transpose(1, 2)

        mixed_BALE = F.scaled_dot_product_attention(
            split(self.query(asking_BLH)), split(self.key(context_BLH)), split(self.value(context_BLH)), visible_BLL.unsqueeze(1)
        )
        mixed_BLH = F.dropout(self.out(mixed_BALE.transpose(1, 2).flatten(2)), self.dropout, self.training)
        attended_BLH = self.attended(asking_BLH + mixed_BLH)
        inner_BLH = F.dropout(self.down(self.activation(self.up(attended_BLH))), self.dropout, self.training)
        finished_BLH: torch.Tensor = self.finished(attended_BLH + inner_BLH)
        return finished_BLH


def decoder_inputs(transformer: Any, ids_BL: torch.Tensor, text_BH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """H1: the text's vector plus each position's embedding (Eq. 5). H2: the vector, then the embedded tokens with positions (Eq. 6).

    As in the released code, H2 uses the encoder's own embedding layer with its layer norm, and H1 has no layer norm.
    """
    places_L = position_ids(transformer, ids_BL.shape[1], ids_BL.device)
    asking_BLH = text_BH.unsqueeze(1) + transformer.embeddings.position_embeddings(places_L)
    embedded_BLH = transformer.embeddings(input_ids=ids_BL)
    return asking_BLH, torch.cat([text_BH.unsqueeze(1).to(embedded_BLH.dtype), embedded_BLH[:, 1:]], dim=1)


def refuse_unlike_bert(transformer: Any) -> None:
    """UserError if the model has no position embeddings, or its configuration lacks a setting that the decoder's layer needs."""
    config, embeddings = transformer.config, getattr(transformer, "embeddings", None)
    missing = ["position embeddings"] if getattr(embeddings, "position_embeddings", None) is None else []
    missing += [name for name in SETTINGS if not hasattr(config, name)]
    if missing:
        raise UserError(f"objective retromae: a {config.model_type} model has no {missing[0]}; expected one like BERT or RoBERTa")


def position_ids(transformer: Any, length: int, device: torch.device) -> torch.Tensor:
    """The ids of the first `length` positions: from 0, or from the padding id + 1 (RoBERTa)."""
    embeddings = transformer.embeddings.position_embeddings
    first = 0 if embeddings.padding_idx is None else embeddings.padding_idx + 1
    return torch.arange(first, first + length, device=device)
