"""The module to train: the encoder, plus the MLM head and the projector, which retrieval does not use."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.models.bi_encoder import Encoder, Towers, causal_cls_error, load_towers
from tasks.core.models.folder import Shape, read_shape
from tasks.core.models.head import Head
from tasks.core.models.hidden_states.pooling import pool
from tasks.core.models.limits import FAILURES, one_line
from tasks.core.models.mlm_head import MLMHead, load_head
from tasks.core.models.projector import make_projector
from tasks.core.stage.draws import DECODER, HEAD, WEIGHTS, draw_seed
from tasks.core.tokens.chunks import Chunks
from tasks.core.tokens.tokenizer import longest_text
from tasks.pretrain.decoder import Decoder, refuse_unlike_bert
from tasks.pretrain.params import Pretrain, Scratch

PER_LAYER = ("layer_types", "mlp_layer_types")  # lists with one entry per layer; transformers derives them from other settings


class Pretrainer(nn.Module):
    """Encoder, MLM head, projector, and RetroMAE's decoder as one module, for the optimizer and the checkpoint.

    Of the encoder, only the transformer is trained. A head over its vectors (base.head linear_norm) is unchanged.
    """

    def __init__(
        self, encoder: Encoder, head: MLMHead | None, projector: Head | None, pooling: str, decoder: Decoder | None = None
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.encoder, self.head, self.projector, self.pooling = encoder, head, projector, pooling

    def hidden(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Eq. 4: the tokens' outputs, [B, L, H]."""
        return self.encoder.outputs(ids_BL, mask_BL)

    def pool(self, hidden_BLH: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """The text vectors before the projector, [B, H], float32: pooled outputs of the transformer, without encoder.head."""
        return pool(hidden_BLH, mask_BL, self.pooling)

    def projected(self, text_NH: torch.Tensor) -> torch.Tensor:
        """Eq. 5: the text vectors [N, H] after the projector; unchanged if there is none (Table 6)."""
        if self.projector is None:
            return text_NH
        projected_NH: torch.Tensor = self.projector(text_NH)
        return projected_NH

    def embeddings(self) -> torch.Tensor:
        """The word embeddings, [V, H], which are also the MLM head's output layer."""
        weight: torch.Tensor = self.encoder.transformer.get_input_embeddings().weight
        return weight


def span_means(hidden_BLH: torch.Tensor, spans_BS2: torch.Tensor) -> torch.Tensor:
    """Eq. 7: the vector of every span, [B, S, H], float32: the mean of the outputs at start ... end - 1."""
    place_L = torch.arange(hidden_BLH.shape[1], device=hidden_BLH.device)
    inside_BSL = (place_L >= spans_BS2[..., :1]) & (place_L < spans_BS2[..., 1:])
    weights_BSL = inside_BSL.float() / inside_BSL.sum(-1, keepdim=True)
    return weights_BSL @ hidden_BLH.float()


def scale_vectors(vectors: torch.Tensor, similarity: Literal["dot", "cosine"]) -> torch.Tensor:
    """Scale vectors so that their dot product is the similarity."""
    return F.normalize(vectors, dim=-1) if similarity == "cosine" else vectors


def initial_towers(init: Path, scratch: Scratch | None, seed: int) -> Towers:
    """The encoder of `init`, or with `scratch` a new one of that size with the same vocabulary and pooling."""
    if scratch is None:
        towers = load_towers(init)
        if not towers.shared:
            raise UserError(f"{init}: found a separate query tower, expected one shared tower; name the encoder from before adore")
        return towers
    return random_towers(read_json(init / "config.json"), read_shape(init), scratch, seed)


def random_towers(config: dict[str, Any], shape: Shape, scratch: Scratch, seed: int) -> Towers:
    """A transformer with the architecture of `config` and random weights, initialized as transformers does. No head over the vectors."""
    size = {
        "num_hidden_layers": scratch.layers,
        "hidden_size": scratch.width,
        "num_attention_heads": scratch.heads,
        "intermediate_size": 4 * scratch.width,
    }
    if missing := [name for name in size if name not in config]:
        raise UserError(f"scratch: a {config.get('model_type')} model has no {missing[0]}; expected a BERT-like model")
    size |= {name: scratch.heads for name in ("num_key_value_heads",) if name in config}
    settings = {name: value for name, value in config.items() if name not in PER_LAYER} | size
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw_seed(seed, WEIGHTS))
            transformer = AutoModel.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    except (*FAILURES, StrictDataclassError) as error:
        raise UserError(f"scratch: a {config.get('model_type')} model cannot have this size ({one_line(error)}); choose another") from None
    encoder = Encoder(transformer, replace(shape, head="none", layers=(), width=None))
    return Towers(encoder, encoder)


def initial_head(init: Path, transformer: Any, params: Pretrain) -> tuple[MLMHead, bool]:
    """The MLM head (of `init` if it has one, else new), tied to the word embeddings; and whether it is new."""
    config, width = transformer.config, transformer.get_input_embeddings().weight.shape[1]
    if width != config.hidden_size and params.objective == "retromae":
        raise UserError(
            f"{init}: word embeddings of width {width}, hidden states of {config.hidden_size}, expected equal widths for "
            "objective retromae; choose another objective or encoder"
        )
    head = MLMHead(config, width)
    if params.scratch is None and load_head(head, init):
        return head, False
    head.draw(torch.Generator().manual_seed(draw_seed(params.seed, HEAD)))
    return head, True


def make_pretrainer(towers: Towers, head: MLMHead | None, params: Pretrain) -> Pretrainer:
    """The module to train. The inverse cloze task has no projector (Chang et al., ICLR 2020, arXiv:2002.03932)."""
    encoder = towers.document
    kind = params.projector if params.objective == "costa" else "none"
    pooling = encoder.shape.pooling if params.pooling == "encoder" else params.pooling
    if "+" in pooling:
        raise UserError(f"pretrain: found an encoder of several poolings ({pooling}), expected one; set pooling: cls or mean in its entry")
    if pooling == "cls" and encoder.causal:
        raise causal_cls_error("pretrain", encoder.transformer.config.model_type)
    decoder = None
    if params.objective == "retromae":
        refuse_unlike_bert(encoder.transformer)
        decoder = Decoder(encoder.transformer.config)
        decoder.draw(torch.Generator().manual_seed(draw_seed(params.seed, DECODER)))
    return Pretrainer(encoder, head, make_projector(kind, encoder.hidden, params.seed), pooling, decoder)


def check_length(chunks: Chunks, transformer: Any) -> None:
    """UserError if a chunk may be longer than the transformer's positions."""
    most = longest_text(transformer)
    if most is not None and chunks.tokens.max_length > most:
        raise UserError(
            f"params.yaml: chunk.length: found {chunks.tokens.max_length}, expected at most {most}, the model's limit; decrease it"
        )
