"""The head that predicts masked tokens: dense, activation, layer norm, then the word embeddings as the output layer.

Hugging Face keeps it inside the model (BertForMaskedLM and similar); an encoder folder of this project
keeps it separately, in `mlm_head/`, because a bi-encoder does not need it. H hidden width, E width of the word
embeddings (often H), V vocabulary, M tokens to predict.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.activations import ACT2FN

from tasks.core.errors import UserError
from tasks.core.files import read_json

FOLDER = "mlm_head"
WEIGHTS = "model.safetensors"
NAMES = ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias")
BIASES = ("dense.bias", "norm.bias")  # 0 where a model has none
PLACES = (  # of dense, norm and the bias over the vocabulary in a Hugging Face model
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),  # BERT, DeBERTa
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),  # RoBERTa, XLM-R, MPNet
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),  # DistilBERT
    ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),  # ALBERT
    ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),  # ELECTRA
    ("lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head.bias"),  # DeBERTa, not legacy
    ("head.dense", "head.norm", "decoder.bias"),  # ModernBERT
)
GELU = ("camembert", "data2vec-text", "electra", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
ACTIVATIONS = ("classifier_activation", "hidden_act", "activation")  # settings: ModernBERT's, most models', DistilBERT's
OLD = {"weight": "gamma", "bias": "beta"}  # names of layer norms until 2019


class MLMHead(nn.Module):
    """Hidden states of the tokens to predict [M, H] to logits [M, V]. The output layer is `embeddings` [V, E], tied, passed in."""

    def __init__(self, config: Any, width: int | None = None) -> None:
        """`width`: E, if it is not H."""
        super().__init__()
        hidden = int(config.hidden_size)
        width = width or hidden
        self.dense = nn.Linear(hidden, width)
        self.activation = ACT2FN[_activation(config)]
        self.norm = nn.LayerNorm(width, eps=getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12)))
        self.bias = nn.Parameter(torch.zeros(int(config.vocab_size)))

    def forward(self, hidden_MH: torch.Tensor, embeddings_VE: torch.Tensor) -> torch.Tensor:
        logits_MV: torch.Tensor = self.norm(self.activation(self.dense(hidden_MH))) @ embeddings_VE.T + self.bias
        return logits_MV

    def draw(self, generator: torch.Generator) -> None:
        """Draw new weights: N(0, 0.02), biases 0 (BERT)."""
        nn.init.normal_(self.dense.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.dense.bias)


def _activation(config: Any) -> str:
    """The name of a head's activation, as in transformers' own model. The model types in GELU use it whatever their configuration says."""
    settings = (getattr(config, name, None) for name in ACTIVATIONS)
    return "gelu" if config.model_type in GELU else next((name for name in settings if isinstance(name, str)), "gelu")


def find_head(model: Path) -> dict[str, torch.Tensor]:
    """The head in an encoder folder or inside a Hugging Face model folder, under this module's names.

    Empty if there is none, or if its output layer is not the word embeddings.
    """
    if (model / FOLDER / WEIGHTS).exists():
        return load_file(model / FOLDER / WEIGHTS)
    weights = model / WEIGHTS
    if not weights.exists() or read_json(model / "config.json").get("tie_word_embeddings") is False:
        return {}
    with safe_open(weights, framework="pt") as file:
        present = set(file.keys())
        for dense, norm, bias in PLACES:
            keys = dict(zip(NAMES, (f"{dense}.weight", f"{dense}.bias", f"{norm}.weight", f"{norm}.bias", bias), strict=True))
            keys |= {f"norm.{new}": f"{norm}.{old}" for new, old in OLD.items() if f"{norm}.{old}" in present}
            absent = {name for name in BIASES if keys[name] not in present}  # ModernBERT's, by default
            if present.issuperset(key for name, key in keys.items() if name not in absent):
                tensors = {name: file.get_tensor(key).float() for name, key in keys.items() if name not in absent}
                return tensors | {name: torch.zeros_like(tensors["norm.weight"]) for name in absent}
    return {}


def is_head_missing(model: Path) -> bool:
    """Whether a Hugging Face model folder says that it is a masked language model, and `find_head` finds no head in it."""
    path = model / "config.json"
    names = (read_json(path).get("architectures") or []) if path.exists() else []  # two towers have none
    return any(str(name).endswith("ForMaskedLM") for name in names) and not find_head(model)


def save_head(tensors: dict[str, torch.Tensor], encoder: Path) -> None:
    """Write a head beside the encoder in `encoder` (existing)."""
    (encoder / FOLDER).mkdir()
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, encoder / FOLDER / WEIGHTS)


def load_head(head: MLMHead, encoder: Path) -> bool:
    """Fill `head` from an encoder folder; False if the folder has none. UserError if it does not match."""
    path = encoder / FOLDER / WEIGHTS
    if not path.exists():
        return False
    try:
        head.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{path}: does not match its encoder ({' '.join(str(error).split())})") from None
    return True
