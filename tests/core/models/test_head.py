"""Layers over the pooled vector that named heads do not have: dropout, residual connections."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tasks.core.errors import UserError
from tasks.core.models.head import Head
from tasks.core.models.layers import Layer, read_layer


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
    through = getattr(head, "linear_residual", nn.Identity())(vectors)
    torch.testing.assert_close(head(vectors), torch.tanh(head.linear(vectors)) + through)
    head(vectors).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())
    ((name, kind),) = head.save(tmp_path, 2)
    assert read_layer(tmp_path / name, kind) == layer
    again = Head(8, "layers", (layer,))
    again.load([tmp_path / name])
    assert torch.equal(again(vectors), head(vectors))
    if outputs != 8:
        Head(8, "layers", (Layer("Dense", 8, outputs),)).save(tmp_path, 3)
        with pytest.raises(UserError, match=r"3_Dense/model.safetensors: cannot be loaded .*residual.weight"):
            again.load([tmp_path / "3_Dense"])
