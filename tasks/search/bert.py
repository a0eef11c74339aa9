"""The vector of one query by an encoder built like BERT (Devlin et al. 2019), in numpy.

A search is one short text, and importing torch and transformers takes longer than all the rest of it: 5 s of CPU. The arithmetic is
that of transformers' BertModel in float32, without padding; weights are read from the file as each layer needs them.

Shapes: L tokens, H hidden width, A attention heads, D vector width.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from scipy.special import erf, softmax
from tokenizers import Tokenizer

from tasks.core.models.folder import ROUTER, Shape, read_shape
from tasks.core.stage.files import read_json

Floats = npt.NDArray[np.float32]
Read = Callable[[str], Floats]
FAMILY = {"bert": 0, "roberta": None, "xlm-roberta": None}  # position of the first token; none: behind the padding's id (fairseq)


def query_vector(encoder: Path, text: str, max_length: int) -> Floats | None:
    """The vector float32 [1, D] of `text` (prefix included), cut to `max_length` tokens, by the query tower of an encoder folder.

    None for an encoder that is not built like BERT, has another pooling or head, or cannot be read: `tasks.core.models.bi_encoder`
    loads it, or says what is wrong.
    """
    tower = encoder / "query" if (encoder / ROUTER).exists() else encoder
    try:
        config, shape = read_json(tower / "config.json"), read_shape(tower)
        if config.get("model_type") not in FAMILY or config.get("hidden_act") != "gelu" or config.get("is_decoder"):
            return None
        if config.get("position_embedding_type", "absolute") != "absolute":
            return None
        if shape.pooling not in ("cls", "mean") or shape.head == "layers":
            return None
        with safe_open(tower / "model.safetensors", framework="numpy") as weights:
            hidden_LH = last_hidden(weights, config, token_ids(encoder, text, max_length))
        pooled_H = hidden_LH[0] if shape.pooling == "cls" else hidden_LH.mean(axis=0)
        vector_D = finished(pooled_H, shape, tower)
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return vector_D[None].astype(np.float32) if np.isfinite(vector_D).all() else None


def token_ids(encoder: Path, text: str, max_length: int) -> list[int]:
    """Token ids [L] of `text`, special tokens included, as the tokenizer of transformers gives them that saved this folder.

    ValueError for a tokenizer.json that is missing or corrupt.
    """
    try:
        tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(str(error)) from None
    side = read_json(encoder / "tokenizer_config.json").get("truncation_side", "right")
    tokenizer.enable_truncation(max_length, direction=side)
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def last_hidden(weights: Any, config: Mapping[str, Any], ids_L: list[int]) -> Floats:
    """The last hidden states [L, H]. `weights` is an open safetensors file."""
    read, epsilon = reader(weights), config["layer_norm_eps"]
    heads, first = config["num_attention_heads"], FAMILY[config["model_type"]]
    start = config["pad_token_id"] + 1 if first is None else first
    words, positions = (weights.get_slice(f"embeddings.{name}_embeddings.weight") for name in ("word", "position"))
    x_LH = np.concatenate([words[one : one + 1] for one in ids_L]) + positions[start : start + len(ids_L)]
    x_LH = norm(x_LH + read("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm", read, epsilon)
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        q_ALE, k_ALE, v_ALE = (
            linear(x_LH, f"{layer}.attention.self.{name}", read).reshape(len(ids_L), heads, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        weights_ALL = softmax(q_ALE @ k_ALE.swapaxes(1, 2) / np.sqrt(q_ALE.shape[2], dtype=np.float32), axis=-1)
        context_LH = (weights_ALL @ v_ALE).swapaxes(0, 1).reshape(x_LH.shape)
        mixed_LH = linear(context_LH, f"{layer}.attention.output.dense", read)
        x_LH = norm(x_LH + mixed_LH, f"{layer}.attention.output.LayerNorm", read, epsilon)
        outer_LH = linear(gelu(linear(x_LH, f"{layer}.intermediate.dense", read)), f"{layer}.output.dense", read)
        x_LH = norm(x_LH + outer_LH, f"{layer}.output.LayerNorm", read, epsilon)
    return x_LH


def reader(weights: Any) -> Read:
    """Reads a tensor by today's name from an open safetensors file, which may have TensorFlow's names of a LayerNorm's weights."""
    names = set(weights.keys())

    def read(name: str) -> Floats:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensor: Floats = weights.get_tensor(old if old in names else name)
        return tensor

    return read


def finished(pooled_H: Floats, shape: Shape, tower: Path) -> Floats:
    """A pooled vector [H] as a text's vector [D]: through the head, cut, and of length 1 for cosine (`Encoder.finish`)."""
    vector = pooled_H
    if shape.head != "none":
        with safe_open(tower / "2_Dense/model.safetensors", framework="numpy") as weights:
            vector = linear(vector, "linear", weights.get_tensor)
    if shape.head == "linear_norm":
        with safe_open(tower / "3_LayerNorm/model.safetensors", framework="numpy") as weights:
            vector = norm(vector, "norm", weights.get_tensor, 1e-5)
    if shape.head == "tanh":
        vector = np.tanh(vector)
    vector = vector[: shape.width]
    return vector / max(float(np.linalg.norm(vector)), 1e-12) if shape.similarity == "cosine" else vector


def linear(x: Floats, name: str, read: Read) -> Floats:
    """x W^T + b, as torch.nn.Linear stores them."""
    return x @ read(f"{name}.weight").T + read(f"{name}.bias")


def norm(x: Floats, name: str, read: Read, epsilon: float) -> Floats:
    """Layer normalization over the last axis (torch.nn.LayerNorm)."""
    centered = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + epsilon)
    normed: Floats = centered / deviation * read(f"{name}.weight") + read(f"{name}.bias")
    return normed


def gelu(x: Floats) -> Floats:
    """x times the standard normal distribution function."""
    out: Floats = x * (0.5 * (1 + erf(x / np.sqrt(2, dtype=np.float32))))
    return out
