"""The transformers class that reads a model folder, its longest text (found without the weights), and the errors of such models."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

from tasks.core.errors import UserError
from tasks.core.models.folder import ROUTER
from tasks.core.tokens.tokenizer import load_tokenizer, longest_text

FAILURES = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)  # of transformers that do not read texts alone
CLOSE = 1e-3  # allowed effect of padding, as a share of the largest number of a vector or score; float32 is off by 1e-6
WITH_DECODER = ("t5", "mt5", "umt5")  # their encoder can be loaded alone, as sentence-transformers does (GTR, Sentence-T5)


def read_config(folder: Path, **settings: Any) -> Any:
    """The configuration of a local model folder, changed by `settings`; errors are those of transformers.

    Its choice of attention is dropped: `eager` would add our boolean masks to the scores, and `flash_attention_2` needs a package.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **settings)
    config._attn_implementation = None
    return config


def model_class(config: Any) -> Any:
    """The class that loads a transformer of this configuration; for T5 and its like, only the encoder."""
    return AutoModelForTextEncoding if config.model_type in WITH_DECODER else AutoModel


def no_cache(model: Any) -> dict[str, bool]:
    """Arguments that make `model` keep no cache for later tokens: it takes memory, and fails without a layer of attention (Jamba)."""
    outer, inner = (signature(module.forward).parameters for module in (model, model.base_model))
    is_passed = "use_cache" in outer or any(parameter.kind is Parameter.VAR_KEYWORD for parameter in outer.values())
    return {"use_cache": False} if is_passed and "use_cache" in inner else {}


@contextmanager
def transformer_errors(config: Any) -> Iterator[None]:
    """Turn a failure of a transformer of `config` that other settings avoid into a UserError.

    In bfloat16, DeBERTa's first version fails under autocast. On a GPU, deterministic algorithms refuse some operations, as `cumsum`.
    """
    try:
        yield
    except RuntimeError as error:
        found = f"found a transformer ({config.model_type}) that"
        if "BFloat16" in str(error):
            raise UserError(f"{found} fails in bf16 ({one_line(error)}); set precision: fp32") from None
        if "does not have a deterministic implementation" in str(error):
            reason = one_line(error).split(",")[0]
            raise UserError(f"{found} is not reproducible on a GPU ({reason}); set device: cpu in runtime.yaml") from None
        raise


def one_line(error: Exception) -> str:
    """The message of `error` in one line, at most 200 characters; its type's name if it has none."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def most_tokens(folder: Path) -> int:
    """The most tokens per text, special tokens included: the tokenizer's limit, or the transformer's positions if those are fewer."""
    place = folder / "document" if (folder / ROUTER).exists() else folder
    try:
        config = read_config(place)
        with torch.device("meta"):
            transformer = model_class(config).from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise UserError(f"{place}: cannot be loaded ({one_line(error)}); expected config.json of a model") from None
    most = int(load_tokenizer(folder).model_max_length)
    return min(most, longest_text(transformer) or most)
