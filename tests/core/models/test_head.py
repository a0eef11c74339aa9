"""Layers over the pooled vector that no named head has: dropout, residual connections."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tasks.core.errors import UserError
from tasks.core.models.head import Head
from tasks.core.models.layers import Layer, check_widths, last_width, name_of, named_layers, read_layer


def test_dropout_is_of_training_alone() -> None:
    head, vectors = Head(64, "layers", (Layer("Dropout", dropout=0.5),)), torch.ones(4, 64)
    torch.manual_seed(0)
    dropped = head.train()(vectors)
    assert {float(number) for number in dropped.unique()} == {0.0, 2.0}
    assert torch.equal(head.eval()(vectors), vectors)


@pytest.mark.parametrize("rate", [-0.1, 1.5, "half", None])
def test_a_dropout_that_is_no_probability_is_refused(rate: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dropout": rate}))
    with pytest.raises(UserError, match=rf"config.json: found dropout {rate}, expected a probability"):
        read_layer(tmp_path, "Dropout")


@pytest.mark.parametrize("outputs", [8, 5])
def test_a_residual_connection_is_saved_trained_and_read(outputs: int, tmp_path: Path) -> None:
    """Through a matrix where the widths differ; without that matrix the folder is refused."""
    layer = Layer("Dense", 8, outputs, activation="Tanh", residual=True)
    head, vectors = Head(8, "layers", (layer,)), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    residual = getattr(head, "linear_residual", nn.Identity())(vectors)
    torch.testing.assert_close(head(vectors), torch.tanh(head.linear(vectors)) + residual)
    head(vectors).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())
    assert len(list(head.parameters())) == (2 if outputs == 8 else 3), "that matrix has no bias"
    ((name, kind),) = head.save(tmp_path, 2)
    assert read_layer(tmp_path / name, kind) == layer
    reloaded = Head(8, "layers", (layer,))
    reloaded.load([tmp_path / name])
    assert torch.equal(reloaded(vectors), head(vectors))
    if outputs != 8:
        Head(8, "layers", (Layer("Dense", 8, outputs),)).save(tmp_path, 3)
        with pytest.raises(UserError, match=r"3_Dense/model.safetensors: cannot be loaded .*residual.weight"):
            reloaded.load([tmp_path / "3_Dense"])


def test_several_layers_of_a_kind_are_applied_saved_and_read_in_their_order(tmp_path: Path) -> None:
    layers = (
        Layer("LayerNorm", 8, 8),
        Layer("Dense", 8, 5),
        Layer("Dropout", dropout=0.5),
        Layer("Dense", 5, 5, bias=False, activation="Tanh"),
        Layer("LayerNorm", 5, 5),
        Layer("Normalize"),
    )
    head = Head(8, "layers", layers).eval()
    draw = torch.Generator().manual_seed(0)
    for weight in head.parameters():
        nn.init.normal_(weight, generator=draw)
    x_BD = vectors_BD = torch.randn(3, 8, generator=draw)
    first_norm, widen, square, last_norm = (dict(head.named_children())[name] for name in ("norm", "linear", "linear_2", "norm_2"))

    def layer_norm(norm: nn.Module, x_BD: torch.Tensor) -> torch.Tensor:
        centered_BD = x_BD - x_BD.mean(1, keepdim=True)
        return centered_BD / (centered_BD.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias

    x_BD = layer_norm(first_norm, x_BD) @ widen.weight.T + widen.bias
    x_BD = layer_norm(last_norm, torch.tanh(x_BD @ square.weight.T))
    expected_BD = x_BD / x_BD.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(head(vectors_BD), expected_BD)
    assert head.width == 5 and square.bias is None
    entries = head.save(tmp_path, 2)
    assert entries == [(f"{number}_{layer.kind}", layer.kind) for number, layer in enumerate(layers, 2)]
    assert tuple(read_layer(tmp_path / name, kind) for name, kind in entries) == layers
    reloaded = Head(8, "layers", layers).eval()
    reloaded.load([tmp_path / name for name, _ in entries])
    torch.testing.assert_close(reloaded(vectors_BD), expected_BD)


@pytest.mark.parametrize("kind", ["linear", "tanh", "linear_norm"])
def test_new_weights_of_a_named_head_are_small_and_of_the_seed(kind: str) -> None:
    heads = [Head(64, kind), Head(64, kind), Head(64, kind)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        head.draw(torch.Generator().manual_seed(seed))
    weights = [head.linear.weight.detach() for head in heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert float(weights[0].std()) == pytest.approx(0.02, rel=0.05) and abs(float(weights[0].mean())) < 0.002
    assert not heads[0].linear.bias.any() and heads[0].kind == kind
    assert heads[0].layers == named_layers(kind, 64) and name_of(heads[0].layers) == kind


@pytest.mark.parametrize(("kind", "settings", "layer"), [
    ("Dense", {"in_features": 3, "out_features": 1}, Layer("Dense", 3, 1, activation="Tanh")),
    ("Dense", {"in_features": 3, "out_features": 2, "bias": False, "module_input_name": None}, Layer("Dense", 3, 2, False, "Tanh")),
    ("Dropout", {}, Layer("Dropout", dropout=0.2)),
    ("Dropout", {"dropout": 0}, Layer("Dropout")),
    ("Dropout", {"dropout": 1}, Layer("Dropout", dropout=1.0)),
    ("LayerNorm", {"dimension": 1, "module_output_name": "sentence_embedding"}, Layer("LayerNorm", 1, 1)),
    ("Normalize", {}, Layer("Normalize")),
])  # fmt: skip
def test_settings_that_a_module_leaves_out_are_those_of_sentence_transformers(
    kind: str, settings: dict[str, object], layer: Layer, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert read_layer(tmp_path, kind) == layer


@pytest.mark.parametrize(("kind", "settings", "words"), [
    ("Dense", {"in_features": 0, "out_features": 4}, "found in_features 0, expected a number of at least 1"),
    ("LayerNorm", {}, "found dimension None, expected a number of at least 1"),
    ("Normalize", {"module_output_name": "token_embeddings"}, "found module_output_name token_embeddings, expected sentence_embedding"),
])  # fmt: skip
def test_other_settings_are_refused(kind: str, settings: dict[str, object], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"^{tmp_path}/config.json: {words}$"):
        read_layer(tmp_path, kind)


def test_widths_must_follow_each_other() -> None:
    layers = (Layer("Dropout"), Layer("Dense", 8, 5), Layer("Normalize"), Layer("LayerNorm", 5, 5), Layer("Dense", 5, 3))
    check_widths(layers, 8, Path("m"))
    assert (last_width(layers, 8), last_width(layers[:1], 8), last_width(layers[:3], 8)) == (3, 8, 5)
    with pytest.raises(UserError, match=r"^m/modules\.json: found a Dense with 5 inputs, expected 3, the outputs before it$"):
        check_widths((*layers, layers[-1]), 8, Path("m"))
