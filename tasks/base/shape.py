"""Give the source encoder the shape that the parameters ask for."""

import json
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tasks.base.params import Base
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Encoder, Towers, causal_cls_error, load_towers, truncate
from tasks.core.models.folder import Shape, read_shape
from tasks.core.models.hidden_states.pooling import pool
from tasks.core.models.limits import CLOSE, FAILURES, one_line
from tasks.core.tokens.tokenizer import largest_id, load_tokenizer, longest_text

PROBE, PADDING = "Which texts are about rivers of the north?", 13  # a text, and tokens of padding after it
LENGTH = 64  # maximum tokens of both together
SEEN = 1e-5  # a token sees another if its output changes by more than this, relative to its largest number


def requested_shape(folder: Path, params: Base) -> Shape:
    """The shape in the source's own files, with the parameters that override it."""
    overrides = {name: value for name in ("pooling", "head", "similarity") if (value := getattr(params, name)) != "source"}
    shape = replace(read_shape(folder), **overrides)
    return shape if shape.head == "layers" else replace(shape, layers=())


def fitted_tokenizer(folder: Path, towers: Towers) -> Any:
    """The source's tokenizer, with texts limited to the transformer's positions. UserError if it has tokens that the transformer lacks."""
    tokenizer, transformer = load_tokenizer(folder), towers.document.transformer
    vocabulary_size = transformer.config.vocab_size
    if (tokens := largest_id(tokenizer) + 1) > vocabulary_size:
        raise UserError(f"{folder}: the tokenizer has {tokens} tokens, the transformer {vocabulary_size}; expected a matching pair")
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest_text(transformer) or tokenizer.model_max_length)
    return tokenizer


def refuse_unusable(folder: Path, towers: Towers, tokenizer: Any) -> None:
    """UserError if a transformer cannot be used to encode texts.

    That is: it fails on a text, its tokens do not see each other, or a text's vector depends on padding, as in ConvBERT and FNet, or on
    token types, which are not passed here.
    """
    length = min(tokenizer.model_max_length, LENGTH)  # 1e30 if the tokenizer has no limit
    padding = min(PADDING, length // 2)
    inputs = dict(tokenizer(PROBE, truncation=True, max_length=length - padding, return_tensors="pt"))
    ids_1L = inputs["input_ids"]
    ids_1P, mask_1P = (
        F.pad(tensor, (0, padding), value=value) for tensor, value in ((ids_1L, tokenizer.pad_token_id), (ids_1L * 0 + 1, 0))
    )
    for tower in (towers.query, towers.document):
        transformer = tower.transformer
        accepted = signature(transformer.forward).parameters
        kind = transformer.config.model_type
        _refuse_blind(folder, tower, ids_1L)
        with torch.inference_mode():
            plain = tower(ids_1L, ids_1L * 0 + 1)
            padded = tower(ids_1P, mask_1P)
            typed = plain
            if "token_type_ids" in inputs and "token_type_ids" in accepted:
                hidden_1LH = transformer(**{name: value for name, value in inputs.items() if name in accepted}).last_hidden_state
                typed = tower.finish(pool(hidden_1LH, ids_1L * 0 + 1, tower.shape.pooling))
        tolerance = CLOSE * plain.abs().max()
        if not (padded - plain).abs().max() <= tolerance:
            raise UserError(
                f"{folder}: found a transformer ({kind}) whose vectors depend on padding; expected one that masks it, such as BERT"
            )
        if not (typed - plain).abs().max() <= tolerance:
            raise UserError(
                f"{folder}: found a tokenizer whose token_type_ids change the vectors of this transformer ({kind}); expected none, or "
                "zeros over BERT; if it was trained without, remove token_type_ids from model_input_names in tokenizer_config.json"
            )


def _refuse_blind(folder: Path, tower: Encoder, ids_1L: torch.Tensor) -> None:
    """UserError if a transformer fails on a text, if its tokens see no others, or if it pools the first token, which sees no later ones."""
    kind = tower.transformer.config.model_type
    with torch.inference_mode():
        try:  # `firsts` keeps only the first token, `lasts` only the last
            plain, firsts, lasts = (tower.outputs(text_1L, text_1L * 0 + 1)[0] for text_1L in _alike(ids_1L))
        except FAILURES as error:
            message = one_line(error)
            raise UserError(f"{folder}: found a transformer ({kind}) that fails on a text ({message}); expected one such as BERT") from None
    sees_later, sees_earlier = (
        (plain[n] - changed[n]).abs().max() > SEEN * plain[n].abs().max() for n, changed in ((0, firsts), (-1, lasts))
    )
    if len(plain) < 2 or sees_later:
        return
    if not sees_earlier:
        raise UserError(f"{folder}: found a transformer ({kind}) whose tokens see no others; expected one with attention, such as BERT")
    if "cls" in tower.shape.pooling.split("+"):
        raise causal_cls_error(folder, kind)


def _alike(ids_1L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A text, and two of the same length: one repeats its first token, one its last."""
    return ids_1L, ids_1L[:, :1].expand_as(ids_1L), ids_1L[:, -1:].expand_as(ids_1L)


def refuse_other_tokenizer(name: str, tokenizer: Any, folder: Path) -> None:
    """UserError if the tokenizer of entry `name` differs from that in `folder`, or has a lower limit: all encoders read the same tokens."""
    shared = load_tokenizer(folder)
    if _pieces(tokenizer) != _pieces(shared):
        raise UserError(f"params.yaml: {name}.source: found another tokenizer, expected the one of encoder.source; use a separate project")
    if tokenizer.model_max_length < shared.model_max_length:
        raise UserError(
            f"params.yaml: {name}.source: found a limit of {tokenizer.model_max_length} tokens, expected at least "
            f"{shared.model_max_length}, the limit of encoder.source; swap the two"
        )


def _pieces(tokenizer: Any) -> dict[str, Any]:
    """All settings of a tokenizer that decide a text's token ids."""
    described: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in described.items() if key not in ("truncation", "padding")} | {"pad": tokenizer.pad_token_id}


def shaped_towers(folder: Path, params: Base, key: str = "base") -> Towers:
    """The source encoder, shaped by `params`, the entry `key`. A new head is drawn from N(0, 0.02), with biases 0 (ANCE, models.py)."""
    source, shape = read_shape(folder), requested_shape(folder, params)
    towers = load_towers(folder, shape)
    if shape.head not in ("none", source.head):
        for tower in (towers.query, towers.document):
            assert tower.head is not None
            tower.head.draw(torch.Generator().manual_seed(params.seed))
    if params.width is not None:
        truncate(towers, params.width, f"params.yaml: {key}.width")
    return towers
