"""Encode one query with an encoder built like BERT (Devlin et al. 2019), in numpy.

A search is one short text, and importing torch and transformers takes longer than everything else: 5 s of CPU. The arithmetic is
that of transformers' BertModel in float32, without padding. Weights are read from the file as each layer needs them.

Shapes: L tokens, H hidden width, A attention heads, D vector width.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from scipy.special import erf, softmax
from tokenizers import Tokenizer

from tasks.core.files import read_json
from tasks.core.models.folder import ROUTER, Shape, read_shape

Floats = npt.NDArray[np.float32]
Read = Callable[[str], Floats]
Open = Callable[[Path], AbstractContextManager[Any]]  # opens a safetensors file
FAMILY = {"bert": 0, "roberta": None, "xlm-roberta": None}  # position of the first token; None: padding id + 1 (fairseq)


def query_vector(encoder: Path, text: str, max_length: int) -> Floats | None:
    """The vector, float32 [1, D], of `text` (prefix included), cut to `max_length` tokens, by the query tower of an encoder folder.

    None if the encoder is not built like BERT, has a pooling or head that is not supported here, adds no special tokens (a text may then
    have no token at all), or cannot be read. Then use `tasks.core.models.bi_encoder`, which loads it or says what is wrong.
    """
    try:
        built = read_tower(encoder)
        if built is None:
            return None
        tokenizer = read_tokenizer(encoder, max_length)
        vector_1D = vector(built, tokenizer, text, _open) if tokenizer.encode("").ids else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return vector_1D if vector_1D is not None and np.isfinite(vector_1D).all() else None


def resident_vector(encoder: Path, max_length: int) -> Callable[[str], Floats] | None:
    """Make `query_vector` a function of the text alone, with everything in memory. The same arithmetic gives the same bits.

    None if `query_vector` returns None.
    """
    if query_vector(encoder, "a query", max_length) is None or (built := read_tower(encoder)) is None:
        return None
    tokenizer, files = read_tokenizer(encoder, max_length), dict[Path, LoadedTensors]()

    def opened(path: Path) -> AbstractContextManager[Any]:
        if path not in files:
            files[path] = LoadedTensors(path)
        return nullcontext(files[path])

    vector(built, tokenizer, "a query", opened)  # reads every file
    return lambda text: vector(built, tokenizer, text, opened)


class LoadedTensors:
    """A safetensors file in memory, with the interface of an open one."""

    def __init__(self, path: Path) -> None:
        with _open(path) as file:
            self._tensors: dict[str, Floats] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping

    def keys(self) -> Iterable[str]:
        """The names of its tensors."""
        return self._tensors

    def get_tensor(self, name: str) -> Floats:
        """A tensor. The caller must not change it."""
        return self._tensors[name]

    get_slice = get_tensor


def _open(path: Path) -> AbstractContextManager[Any]:
    opened: AbstractContextManager[Any] = safe_open(path, framework="numpy")
    return opened


@dataclass(frozen=True)
class Built:
    """A query tower: its folder, its transformer's configuration, and its pooling and head."""

    tower: Path
    config: Mapping[str, Any]
    shape: Shape


def read_tower(encoder: Path) -> Built | None:
    """The query tower of an encoder folder; None if it is not built like BERT, or has a pooling or head that is not supported here."""
    tower = encoder / "query" if (encoder / ROUTER).exists() else encoder
    config, shape = read_json(tower / "config.json"), read_shape(tower)
    if config.get("model_type") not in FAMILY or config.get("hidden_act") != "gelu" or config.get("is_decoder"):
        return None
    if shape.pooling not in ("cls", "mean") or shape.head == "layers" or not shape.pools_prompt:
        return None
    return Built(tower, config, shape) if config.get("position_embedding_type", "absolute") == "absolute" else None


def vector(built: Built, tokenizer: Tokenizer, text: str, opened: Open) -> Floats:
    """The vector, float32 [1, D], of `text`. `opened` opens a file of tensors."""
    ids: list[int] = tokenizer.encode(text).ids
    with opened(built.tower / "model.safetensors") as weights:
        hidden_LH = last_hidden(weights, built.config, ids)
    pooled_H = hidden_LH[0] if built.shape.pooling == "cls" else hidden_LH.mean(axis=0)
    return finish_vector(pooled_H, built.shape, built.tower, opened)[None].astype(np.float32)


def read_tokenizer(encoder: Path, max_length: int) -> Tokenizer:
    """The tokenizer of an encoder folder. It cuts texts to `max_length` tokens, as the transformers tokenizer that saved it does.

    ValueError if tokenizer.json is missing or corrupt.
    """
    try:
        tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises no more specific class
        raise ValueError(str(error)) from None
    side = read_json(encoder / "tokenizer_config.json").get("truncation_side", "right")
    tokenizer.enable_truncation(max_length, direction=side)
    tokenizer.no_padding()
    return tokenizer


def last_hidden(weights: Any, config: Mapping[str, Any], ids_L: list[int]) -> Floats:
    """The last hidden states, [L, H]. `weights` is an open safetensors file."""
    read, epsilon = tensor_reader(weights), config["layer_norm_eps"]
    heads, first_position = config["num_attention_heads"], FAMILY[config["model_type"]]
    words, positions = (weights.get_slice(f"embeddings.{name}_embeddings.weight") for name in ("word", "position"))
    if first_position is None:  # as in fairseq, padding tokens within a text do not count
        padding = config["pad_token_id"]
        counted_L = np.array(ids_L) != padding
        places_L = counted_L.cumsum() * counted_L + padding
    else:
        places_L = np.arange(first_position, first_position + len(ids_L))
    x_LH = np.concatenate([words[token : token + 1] for token in ids_L]) + positions[: places_L.max() + 1][places_L]
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


def tensor_reader(weights: Any) -> Read:
    """Make a function that reads a tensor by its current name, even if the file has TensorFlow's names for LayerNorm weights."""
    names = set(weights.keys())

    def read(name: str) -> Floats:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensor: Floats = weights.get_tensor(old if old in names else name)
        return tensor

    return read


def finish_vector(pooled_H: Floats, shape: Shape, tower: Path, opened: Open = _open) -> Floats:
    """Turn a pooled vector [H] into a text's vector [D]: apply the head, and scale to length 1 for cosine (`Encoder.finish`)."""
    vector_D = pooled_H
    if shape.head != "none":
        with opened(tower / "2_Dense/model.safetensors") as weights:
            vector_D = linear(vector_D, "linear", weights.get_tensor)
    if shape.head == "linear_norm":
        with opened(tower / "3_LayerNorm/model.safetensors") as weights:
            vector_D = norm(vector_D, "norm", weights.get_tensor, 1e-5)
    if shape.head == "tanh":
        vector_D = np.tanh(vector_D)
    vector_D = vector_D[: shape.width]
    return vector_D / max(float(np.linalg.norm(vector_D)), 1e-12) if shape.similarity == "cosine" else vector_D


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
    """x times the cumulative distribution function of the standard normal distribution."""
    out: Floats = x * (0.5 * (1 + erf(x / np.sqrt(2, dtype=np.float32))))
    return out
