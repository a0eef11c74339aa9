"""How long a text a transformer takes: that many tokens go through it, one more does not."""

import pytest
import torch
from transformers import AutoConfig, AutoModel
from transformers import logging as transformers_logging

from tasks.core.text.tokenizer import longest_text


@pytest.mark.parametrize(("kind", "longest"), [("bert", 20), ("distilbert", 20), ("roberta", 18), ("xlm-roberta", 18), ("mpnet", 18)])
def test_a_text_of_that_length_goes_through_and_a_longer_one_does_not(kind: str, longest: int) -> None:
    transformers_logging.set_verbosity_error()
    config = AutoConfig.for_model(kind)
    sizes = {
        "vocab_size": 40,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 20,
    }
    if kind == "distilbert":
        sizes |= {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
    for name, value in sizes.items():
        setattr(config, name, value)
    model = AutoModel.from_config(config).eval()
    assert longest_text(model) == longest
    ids = torch.full((1, longest + 1), 7)
    assert model(input_ids=ids[:, :longest]).last_hidden_state.shape[1] == longest
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=ids)


def test_model_without_position_limit_is_unlimited() -> None:
    config = AutoConfig.for_model("t5", vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    assert longest_text(AutoModel.from_config(config)) is None
