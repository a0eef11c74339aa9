"""Which of transformers' classes reads a model folder, how long a text it takes (found without its weights), and what fails in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

from tasks.core.models.folder import ROUTER
from tasks.core.stage.errors import UserError
from tasks.core.text.tokenizer import load_tokenizer, longest_text

FAILURES = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)  # of transformers that read something else
CLOSE = 1e-3  # of the largest number of a vector or score, whatever the padding; float32 is off by 1e-6
WITH_DECODER = ("t5", "mt5", "umt5")  # whose encoder is a model of its own, as sentence-transformers loads them (GTR, Sentence-T5)


def model_class(config: Any) -> Any:
    """The class that loads a transformer of this configuration: of T5 and its like, the encoder alone."""
    return AutoModelForTextEncoding if config.model_type in WITH_DECODER else AutoModel


def no_cache(model: Any) -> dict[str, bool]:
    """What tells `model` to keep nothing for later tokens: it would take memory, and fails without a layer of attention (Jamba)."""
    own, inner = (signature(each.forward).parameters for each in (model, model.base_model))
    passed = "use_cache" in own or any(each.kind is Parameter.VAR_KEYWORD for each in own.values())
    return {"use_cache": False} if passed and "use_cache" in inner else {}


@contextmanager
def bf16_refused(config: Any) -> Iterator[None]:
    """UserError where a transformer of `config` fails within for its dtype, as DeBERTa's first version under autocast."""
    try:
        yield
    except RuntimeError as error:
        if "BFloat16" not in str(error):
            raise
        raise UserError(f"found a transformer ({config.model_type}) that fails in bf16 ({one_line(error)}); set precision: fp32") from None


def one_line(error: Exception) -> str:
    """What `error` says, in 200 characters at most, or its name."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def most_tokens(folder: Path) -> int:
    """The most tokens per text, special tokens included: the tokenizer's limit, and the transformer's positions."""
    place = folder / "document" if (folder / ROUTER).exists() else folder
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            transformer = model_class(config).from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise UserError(f"{place}: cannot be loaded ({one_line(error)}); expected config.json of a model") from None
    most = int(load_tokenizer(folder).model_max_length)
    return min(most, longest_text(transformer) or most)
