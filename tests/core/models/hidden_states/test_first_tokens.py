"""Outputs of first tokens against transformers' outputs of all tokens."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.cross_encoder import CrossEncoder, load_cross_encoder
from tasks.core.models.folder import Shape
from tasks.core.models.hidden_states.first_tokens import built_like_bert, first_outputs

LENGTHS = [5, 9, 1, 7]
SMALL = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.3}
KINDS = ["bert", "roberta", "xlm-roberta"]


def config_of(kind: str, layers: int, dropout: float = 0.0) -> AutoConfig:
    torch.manual_seed(3)
    shares = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return AutoConfig.for_model(kind, num_hidden_layers=layers, type_vocab_size=2, num_labels=1, **shares, **SMALL)


def texts(pad: int, side: str = "right", lengths: list[int] = LENGTHS) -> tuple[torch.Tensor, torch.Tensor]:
    ids_BL = torch.randint(5, 60, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    mask_BL = torch.stack([torch.arange(max(lengths)) < length for length in lengths]).long()
    mask_BL = mask_BL.flip(1) if side == "left" else mask_BL
    return torch.where(mask_BL > 0, ids_BL, pad), mask_BL


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    grads = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    module.zero_grad()
    return grads


@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_and_gradients_are_those_of_all_outputs(kind: str, layers: int, side: str) -> None:
    tower = Encoder(AutoModel.from_config(config_of(kind, layers)), Shape(pooling="cls", similarity="dot")).double().train()
    assert built_like_bert(tower.transformer)
    ids_BL, mask_BL = texts(tower.transformer.config.pad_token_id, side, [6, 6, 6] if side == "none" else LENGTHS)
    draw_BH = torch.randn(len(ids_BL), tower.width, dtype=torch.float64)
    first_B = mask_BL.argmax(1)
    expected_BH = tower.outputs(ids_BL, mask_BL)[torch.arange(len(ids_BL)), first_B]
    (expected_BH * draw_BH).sum().backward()
    expected = gradients(tower)
    actual_BH = first_outputs(tower.transformer, ids_BL, mask_BL)
    (actual_BH * draw_BH).sum().backward()
    torch.testing.assert_close(actual_BH, expected_BH)
    actual = gradients(tower)
    assert actual.keys() == expected.keys() and len(actual) > 15
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, msg=name)
    torch.testing.assert_close(tower(ids_BL, mask_BL), expected_BH.float())


def test_the_last_layer_computes_no_other_token(tiny_encoder: Path) -> None:
    tower = load_towers(tiny_encoder, Shape(pooling="cls")).document
    counts: list[int] = []
    *earlier, last = tower.transformer.encoder.layer
    for layer in (earlier[-1], last):
        layer.intermediate.dense.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
    ids_BL, mask_BL = texts(0)
    with torch.no_grad():
        tower(ids_BL, mask_BL)
        tower.shape = Shape(pooling="mean")
        tower(ids_BL, mask_BL)
    assert counts == [9, 1, 9, 9]


def test_dropout_is_drawn_in_training_alone() -> None:
    tower = Encoder(AutoModel.from_config(config_of("bert", 1, dropout=0.5)), Shape(pooling="cls")).train()
    ids_BL, mask_BL = texts(0)
    with torch.no_grad():
        vectors = [(torch.manual_seed(seed), tower(ids_BL, mask_BL))[1] for seed in (1, 1, 2)]
        tower.eval()
        exact = [tower(ids_BL, mask_BL) for _ in range(2)]
    assert torch.equal(vectors[0], vectors[1]) and not torch.allclose(vectors[0], vectors[2], atol=0.1) and torch.equal(*exact)


def test_what_attention_drops_is_right_on_average() -> None:
    """Dropout in the last layer's attention alone: the mean over many draws is the output without dropout."""
    transformer = AutoModel.from_config(config_of("bert", 1)).train()
    last = transformer.encoder.layer[-1]
    inputs: list[torch.Tensor] = []
    last.attention.output.dense.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    ids_BL, mask_BL = texts(0)
    with torch.no_grad():
        first_outputs(transformer, ids_BL, mask_BL)
        last.attention.self.dropout.p = 0.3
        for _ in range(3000):
            first_outputs(transformer, ids_BL, mask_BL)
    exact, dropped = inputs[0], torch.stack(inputs[1:])
    assert float(dropped.std(0).max()) > 0.1
    torch.testing.assert_close(dropped.mean(0), exact, atol=0.1 * float(exact.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_gradients_of_a_reranker_are_transformers_own(kind: str) -> None:
    config = config_of(kind, 2)
    config.classifier_dropout = 0.3
    model = AutoModelForSequenceClassification.from_config(config).double().train()
    ids_BL, mask_BL = texts(model.config.pad_token_id)
    inputs = {"input_ids": ids_BL, "attention_mask": mask_BL, "token_type_ids": (ids_BL % 2) * mask_BL}
    torch.manual_seed(4)
    expected_B1 = model(**inputs).logits
    expected_B1.square().sum().backward()
    expected = gradients(model)
    torch.manual_seed(4)
    actual_B1 = CrossEncoder(model, None, 9, 100, torch.device("cpu")).logits(inputs)
    actual_B1.square().sum().backward()
    torch.testing.assert_close(actual_B1, expected_B1)
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, msg=name)


def test_the_last_layer_of_a_reranker_computes_no_other_token(tiny_reranker: Path) -> None:
    encoder, counts = load_cross_encoder(tiny_reranker, 64, 200, torch.device("cpu"), torch.float32), list[int]()
    for layer in encoder.model.base_model.encoder.layer:
        layer.intermediate.dense.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
    encoder.scores([("a question", "and what may answer it")])
    assert counts[-1] == 1 and all(count > 5 for count in counts[:-1])


@pytest.mark.parametrize("prompt", [0, 2])
def test_a_prompt_that_is_not_pooled(prompt: int, tiny_encoder: Path) -> None:
    """The first token is then the one behind it."""
    tower = load_towers(tiny_encoder, Shape(pooling="cls", pools_prompt=False, similarity="dot")).document
    ids_BL, mask_BL = texts(0, lengths=[5, 9, 7])
    with torch.no_grad():
        torch.testing.assert_close(tower(ids_BL, mask_BL, prompt), tower.outputs(ids_BL, mask_BL)[:, prompt], atol=1e-5, rtol=1e-5)


def test_other_architectures_are_told_apart() -> None:
    decoder = AutoModel.from_config(AutoConfig.for_model("bert", is_decoder=True, num_hidden_layers=1, **SMALL))
    other = AutoModel.from_config(AutoConfig.for_model("electra", num_hidden_layers=1, embedding_size=16, **SMALL))
    assert not built_like_bert(decoder) and not built_like_bert(other)
