"""What RetroMAE's decoder sees, and that its loss reaches the text's vector."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from tasks.core.errors import UserError
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pretrain.decoder import Decoder, decoder_inputs, decoder_mask, position_ids, refuse_unlike_bert
from tasks.pretrain.params import Pretrain
from tasks.pretrain.words import Vocabulary, read_vocabulary
from tests.fake_gpu import GPU, fake_gpu

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vocabulary(tiny_encoder: Path) -> Vocabulary:
    return read_vocabulary(load_tokenizer(tiny_encoder), "tiny")


def test_a_position_sees_the_vector_the_special_tokens_and_a_share_of_the_others_but_never_itself(vocabulary: Vocabulary) -> None:
    plain = np.flatnonzero(~vocabulary.special)[:80]
    special = np.flatnonzero(vocabulary.special)[:1]
    ids = np.concatenate([special, plain, special])
    masks = [decoder_mask(ids, vocabulary, 0.7, np.random.default_rng(seed)) for seed in range(40)]
    for mask in masks:
        assert mask[:, 0].all()
        assert not mask.diagonal()[1:].any()
        assert mask[1:-1, -1].all(), "special tokens say nothing of the text"
    inner = np.stack([mask[1:-1, 1:-1] for mask in masks])
    off_diagonal = ~np.eye(80, dtype=bool)
    assert inner[:, off_diagonal].mean() == pytest.approx(0.3, abs=0.01)
    assert len({row.tobytes() for row in inner[0]}) == 80, "each position has a sample of its own"
    assert np.array_equal(masks[0], decoder_mask(ids, vocabulary, 0.7, np.random.default_rng(0)))


def encoder_and_decoder(tiny_encoder: Path) -> tuple[Any, Decoder]:
    config = AutoConfig.for_model(**json.loads((tiny_encoder / "config.json").read_text()))
    torch.manual_seed(0)
    transformer = AutoModel.from_config(config).eval()
    decoder = Decoder(config).eval()
    decoder.draw(torch.Generator().manual_seed(1))
    return transformer, decoder


def test_the_decoder_never_waits_for_a_gpu(tiny_encoder: Path) -> None:
    with fake_gpu() as gpu:
        transformer, decoder = (part.to(GPU) for part in encoder_and_decoder(tiny_encoder))
        ids, seen = torch.arange(5, 15, device=GPU)[None], torch.ones(1, 10, 10, dtype=torch.bool, device=GPU)
        text = torch.ones(1, transformer.config.hidden_size, device=GPU)
        gpu.waited.clear()
        assert decoder(*decoder_inputs(transformer, ids, text), seen).device == GPU
        assert gpu.waited == []


def test_what_is_not_visible_changes_nothing_and_the_vector_changes_every_position(tiny_encoder: Path) -> None:
    transformer, decoder = encoder_and_decoder(tiny_encoder)
    ids = torch.arange(5, 15)[None]
    text = torch.randn(1, transformer.config.hidden_size, requires_grad=True)
    seen = torch.zeros(1, 10, 10, dtype=torch.bool)
    seen[:, :, 0] = True
    seen[0, 3, 7] = True

    def decode(changed: torch.Tensor) -> torch.Tensor:
        return decoder(*decoder_inputs(transformer, changed, text), seen)

    other = ids.clone()
    other[0, 7] = 99
    difference = (decode(ids) - decode(other)).abs().sum(-1)[0]
    assert difference[3] > 1e-4
    assert difference[[0, 1, 2, 4, 5, 6, 7, 8, 9]].max() == 0, "only position 3 sees position 7"
    for place in range(10):
        (gradient,) = torch.autograd.grad(decode(ids)[0, place, 0], text)
        assert gradient.abs().sum() > 0


def test_positions_begin_behind_the_padding_of_roberta() -> None:
    config = AutoConfig.for_model("roberta", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    assert position_ids(AutoModel.from_config(config), 3, CPU).tolist() == [2, 3, 4]
    config = AutoConfig.for_model("bert", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    assert position_ids(AutoModel.from_config(config), 3, CPU).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "missing", "sizes"),
    [
        ("modernbert", "position embeddings", {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}),
        ("distilbert", "intermediate_size", {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}),
    ],
)
def test_an_encoder_unlike_bert_is_refused(kind: str, missing: str, sizes: dict[str, int]) -> None:
    transformer = AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=20, **sizes))
    with pytest.raises(UserError, match=f"objective retromae: a {kind} model has no {missing}; expected one like BERT or RoBERTa"):
        refuse_unlike_bert(transformer)


def test_without_masks_there_is_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="the decoder only copies; set mlm_weight above 0"):
        Pretrain(init="base", objective="retromae", mlm_weight=0)
