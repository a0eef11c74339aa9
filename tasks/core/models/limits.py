"""Which of transformers' classes reads a model folder, and how long a text it takes: found without its weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

from tasks.core.models.folder import ROUTER
from tasks.core.stage.errors import UserError
from tasks.core.text.tokenizer import load_tokenizer, longest_text

WITH_DECODER = ("t5", "mt5", "umt5")  # whose encoder is a model of its own, as sentence-transformers loads them (GTR, Sentence-T5)


def model_class(config: Any) -> Any:
    """The class that loads a transformer of this configuration: of T5 and its like, the encoder alone."""
    return AutoModelForTextEncoding if config.model_type in WITH_DECODER else AutoModel


def most_tokens(folder: Path) -> int:
    """The most tokens per text, special tokens included: the tokenizer's limit, and the transformer's positions."""
    place = folder / "document" if (folder / ROUTER).exists() else folder
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            transformer = model_class(config).from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{place}: cannot be loaded ({str(error).strip().splitlines()[0]}); expected config.json of a model") from None
    most = int(load_tokenizer(folder).model_max_length)
    return min(most, longest_text(transformer) or most)
