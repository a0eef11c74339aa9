"""Give the source encoder the shape that the parameters ask for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tasks.base.params import Base
from tasks.core.models.bi_encoder import Towers, load_towers, truncate
from tasks.core.models.folder import Shape, read_shape
from tasks.core.stage.errors import UserError
from tasks.core.text.tokenizer import load_tokenizer, longest_text


def wanted_shape(folder: Path, params: Base) -> Shape:
    """The shape in the source's own files, unless a parameter overrides it."""
    named = {name: value for name in ("pooling", "head", "similarity") if (value := getattr(params, name)) != "source"}
    shape = replace(read_shape(folder), **named)
    return shape if shape.head == "layers" else replace(shape, layers=())


def fitted_tokenizer(folder: Path, towers: Towers) -> Any:
    """The source's tokenizer, with texts limited to the transformer's positions; UserError for tokens that the transformer lacks."""
    tokenizer, transformer = load_tokenizer(folder), towers.document.transformer
    known = transformer.config.vocab_size
    if len(tokenizer) > known:
        raise UserError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the transformer {known}; expected a matching pair")
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest_text(transformer) or tokenizer.model_max_length)
    return tokenizer


def refuse_other_tokenizer(name: str, tokenizer: Any, folder: Path) -> None:
    """UserError if `tokenizer`, of entry `name`, is not the one in `folder`, or takes shorter texts: all encoders read the same tokens."""
    shared = load_tokenizer(folder)
    if _pieces(tokenizer) != _pieces(shared):
        raise UserError(
            f"params.yaml: {name}.source: found another tokenizer, expected the one of encoder.source; use a project of its own"
        )
    if tokenizer.model_max_length < shared.model_max_length:
        raise UserError(
            f"params.yaml: {name}.source: found a limit of {tokenizer.model_max_length} tokens, expected {shared.model_max_length} at "
            f"least, as encoder.source has; exchange the two"
        )


def _pieces(tokenizer: Any) -> dict[str, Any]:
    """What decides a text's token ids."""
    described: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in described.items() if key not in ("truncation", "padding")} | {"pad": tokenizer.pad_token_id}


def shaped_towers(folder: Path, params: Base, key: str = "base") -> Towers:
    """The source encoder; a head that it lacks is drawn from N(0, 0.02), with biases 0 (ANCE, models.py). `key` is that of `params`."""
    source, shape = read_shape(folder), wanted_shape(folder, params)
    towers = load_towers(folder, shape)
    if shape.head not in ("none", source.head):
        for tower in (towers.query, towers.document):
            assert tower.head is not None
            tower.head.draw(torch.Generator().manual_seed(params.seed))
    if params.width is not None:
        truncate(towers, params.width, f"params.yaml: {key}.width")
    return towers
