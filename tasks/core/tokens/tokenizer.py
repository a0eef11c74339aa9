"""The tokenizer of a model folder, and the model's maximum length."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.tokens.bare_tokenizer import BareTokenizer, Known

REMOTE_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")  # of config.json and tokenizer_config.json


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of a local folder; UserError if there is none. Without a padding token, it pads with its end-of-text token."""
    from transformers import AutoTokenizer  # takes a second, and processes with a BareTokenizer do without

    if not folder.is_dir():  # transformers would take it for a name on the hub
        raise UserError(f"{folder}: no tokenizer (no such folder); expected tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, use_fast=True)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{folder}: no tokenizer ({str(error).strip().splitlines()[0]}); expected tokenizer.json") from None
    if not any((folder / name).is_file() for name in tokenizer.vocab_files_names.values()):
        raise UserError(f"{folder}: no tokenizer found; expected tokenizer.json")  # otherwise transformers invents one of five tokens
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:  # of decoders; masked, so any token serves
        tokenizer.pad_token = tokenizer.eos_token
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        raise UserError(f"{folder}: expected a fast tokenizer (tokenizer.json) with a padding token")
    drop_remote_code(tokenizer.init_kwargs)
    if any(read_json(path).get("do_lower_case") for path in folder.glob("sentence_*_config.json")):
        _lower(tokenizer.backend_tokenizer)
    return tokenizer


def _lower(backend: Any) -> None:
    """Make a tokenizer lowercase every text, as sentence-transformers does where a folder says do_lower_case."""
    from tokenizers.normalizers import Lowercase, Sequence

    settings = json.loads(backend.to_str())["normalizer"] or {}
    parts = settings.get("normalizers", [settings])
    if not any(part.get("type") == "Lowercase" or part.get("lowercase") for part in parts):
        backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if settings else [])])


def cached_tokenizer(folder: Path, known: Known | None = None) -> Any:
    """`load_tokenizer`, or a BareTokenizer if `known` is given; loaded once per process for each folder, however its path is written."""
    return _load_once(folder.resolve(), known)


@cache
def _load_once(folder: Path, known: Known | None) -> Any:
    return BareTokenizer(folder, known) if known else load_tokenizer(folder)


def largest_id(tokenizer: Any) -> int:
    """The largest of a tokenizer's ids, which is more than its number of tokens - 1 where ids have gaps."""
    ids: dict[str, int] = tokenizer.get_vocab()
    return max(ids.values())


def prompt_tokens(tokenizer: Any, prefix: str) -> int:
    """The number of tokens at the beginning of a text with `prefix`: special tokens, then those of the prefix.

    Counted as in sentence-transformers, by the prefix alone, so a last token that the text's first letters join counts, too.
    """
    ids = tokenizer(prefix)["input_ids"] if prefix else []
    return len(ids) - (bool(ids) and ids[-1] in tokenizer.all_special_ids)


def drop_remote_code(settings: Any) -> None:
    """Remove from a loaded configuration (a dict, or an object of settings) the keys that name code to fetch: `auto_map` and its like.

    We load with trust_remote_code=False. Whoever loads what we save may not, and a folder made here has no code of its own to run.
    """
    fields = settings if isinstance(settings, dict) else vars(settings)
    for key in REMOTE_CODE:
        fields.pop(key, None)
    for value in list(fields.values()):
        if isinstance(value, dict) or hasattr(value, "to_diff_dict"):  # a configuration within, as of two towers
            drop_remote_code(value)


def longest_text(model: Any) -> int | None:
    """Number of tokens that a transformer has positions for; None if unlimited. RoBERTa-like models count positions from padding + 1."""
    limit: int | None = getattr(model.config, "max_position_embeddings", None)
    positions = None if limit == -1 else limit  # XLNet's
    padding = getattr(getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None), "padding_idx", None)
    return positions if positions is None or padding is None else positions - padding - 1
