"""Lamb against a plain loop, AdamW's groups, the schedule by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tasks.core.training import optimizers
from tasks.core.training.optimizers import linear_schedule, make_optimizer, parameter_groups
from tests.fake_gpu import GPU, fake_gpu


@pytest.mark.parametrize("at_once", [False, True])
def test_lamb_equals_a_plain_loop(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The algorithm of DRhard's lamb.py: no bias correction, ||w|| clamped to 10, decay inside the update."""
    if at_once:  # as on a GPU
        monkeypatch.setattr(optimizers, "_one_by_one", optimizers._together)
    torch.manual_seed(1)
    module = nn.Linear(5, 4).double()
    with torch.no_grad():
        module.weight.mul_(30)  # a norm beyond the clamp
        module.bias.zero_()  # a norm of 0: trust 1
    optimizer = make_optimizer("lamb", module, lr=0.1, weight_decay=0.01)
    weights = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    first = {n: np.zeros_like(w) for n, w in weights.items()}
    second = {n: np.zeros_like(w) for n, w in weights.items()}
    rng = np.random.default_rng(2)
    for _ in range(4):
        for name, parameter in module.named_parameters():
            gradient = rng.normal(size=weights[name].shape)
            parameter.grad = torch.from_numpy(gradient.copy())
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            update = first[name] / (np.sqrt(second[name]) + 1e-8) + (0.01 if name == "weight" else 0) * weights[name]
            norm, size = min(10.0, float(np.linalg.norm(weights[name]))), float(np.linalg.norm(update))
            weights[name] = weights[name] - 0.1 * (norm / size if norm and size else 1.0) * update
        optimizer.step()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), weights[name], rtol=1e-9)


@pytest.mark.parametrize("at_once", [False, True])
def test_lamb_trusts_small_updates_and_leaves_what_has_none(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of changing sign, so that the second update has a norm of .22; a gradient of 0 has one of 0."""
    if at_once:
        monkeypatch.setattr(optimizers, "_one_by_one", optimizers._together)
    module = nn.Linear(1, 1).double()
    with torch.no_grad():
        module.weight.fill_(2.0)
        module.bias.fill_(3.0)
    optimizer = make_optimizer("lamb", module, lr=0.1, weight_decay=0.0)
    weight = 2.0
    for gradient, m, v in ((1.0, 0.1, 0.001), (-1.0, -0.01, 0.001999)):
        module.weight.grad, module.bias.grad = torch.full((1, 1), gradient).double(), torch.zeros(1).double()
        optimizer.step()
        update = m / (math.sqrt(v) + 1e-8)
        weight -= 0.1 * abs(weight) / abs(update) * update
        assert module.weight.item() == pytest.approx(weight, rel=1e-6) and module.bias.item() == 3.0


def test_adamw_equals_a_plain_loop() -> None:
    """Loshchilov and Hutter (arXiv:1711.05101): decay outside the update, moments corrected for their start at 0."""
    torch.manual_seed(1)
    module = nn.Linear(4, 3)
    optimizer = make_optimizer("adamw", module, lr=0.1, weight_decay=0.5)
    weights = {n: p.detach().double().numpy().copy() for n, p in module.named_parameters()}
    first, second = ({n: np.zeros_like(w) for n, w in weights.items()} for _ in "mv")
    rng = np.random.default_rng(2)
    for step in range(1, 6):
        for name, parameter in module.named_parameters():
            gradient = rng.normal(size=weights[name].shape)
            parameter.grad = torch.from_numpy(gradient).float()
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            update = first[name] / (1 - 0.9**step) / (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8)
            weights[name] = weights[name] * (1 - 0.1 * (0.5 if name == "weight" else 0)) - 0.1 * update
        optimizer.step()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), weights[name], rtol=1e-4, atol=1e-5)


def test_lamb_on_a_gpu_is_that_of_a_cpu() -> None:
    """In float32, to its rounding; without waiting for the GPU."""
    runs = []
    for device in (torch.device("cpu"), GPU):
        with fake_gpu() as gpu:
            torch.manual_seed(1)
            module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))
            inputs = [torch.randn(4, 6).to(device) for _ in range(3)]
            module.to(device)
            gpu.waited.clear()
            optimizer = make_optimizer("lamb", module, lr=0.1, weight_decay=0.01)
            for batch in inputs:
                module(batch).square().sum().backward()
                optimizer.step()
            assert not gpu.waited
            runs.append([weight.detach().cpu() for weight in module.parameters()])
            assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_norms_and_biases_are_not_decayed() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    module[0].bias.requires_grad_(False)
    decayed, spared = parameter_groups(module, 0.01)
    assert decayed["params"] == [module[0].weight]
    assert decayed["weight_decay"] == 0.01
    assert spared["params"] == [module[1].weight, module[1].bias]
    assert spared["weight_decay"] == 0.0


def test_schedule_by_hand() -> None:
    """10 steps, 20% of them rising: 1/2, 1, then 8/8, 7/8, ... 1/8."""
    factor = linear_schedule(10, 0.2)
    assert [factor(s) for s in range(10)] == [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [linear_schedule(2, 0.0)(s) for s in range(2)] == [1.0, 0.5]
    assert math.isclose(linear_schedule(1, 0.1)(0), 1.0)
