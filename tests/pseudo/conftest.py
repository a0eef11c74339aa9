"""A generator of queries that nobody trained."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration


@pytest.fixture(scope="session")
def generator(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, eos_token_id=102, pad_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
