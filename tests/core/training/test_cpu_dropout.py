"""Dropout's own masks: torch's semantics, its share of zeros, the same after the same seed; attention equals torch's."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tasks.core.training.cpu_dropout import LEVELS, CheapDropout, attention, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (700, 301)])
def test_zeros_with_their_probability_and_the_rest_scaled(p: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    x = torch.randn(shape).abs() + 0.1
    x.requires_grad_()
    y = dropout(x, p)
    zero = y == 0
    torch.testing.assert_close(y, torch.where(zero, 0, x / (1 - round(p * LEVELS) / LEVELS)))
    if x.numel() > 1000:
        deviation = math.sqrt(x.numel() * p * (1 - p))
        assert abs(int(zero.sum()) - p * x.numel()) < 5 * deviation
        rows = zero.float().mean(1)  # no row and no column is favoured
        assert float(rows.var()) == pytest.approx(p * (1 - p) / shape[1], rel=0.3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


def test_masks_follow_torchs_seed() -> None:
    x = torch.ones(1000)
    torch.manual_seed(1)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(x, 0.5))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.3, False)])
def test_probabilities_zero_and_one_equal_torch(p: float, training: bool) -> None:
    x = torch.randn(64)
    assert torch.equal(dropout(x, p, training), F.dropout(x, p, training))


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_equals_torch(kind: str, scale: float | None) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (5, 7, 7))
    mask_bool = torch.rand(2, 1, 5, 7) > 0.4
    mask_bool[..., 0] = True
    mask = {"none": None, "bool": mask_bool, "float": torch.zeros(mask_bool.shape).masked_fill_(~mask_bool, -1e9)}[kind]
    actual, expected = (f(q, k, v, attn_mask=mask, scale=scale) for f in (attention, F.scaled_dot_product_attention))
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    for a, b in zip(*(torch.autograd.grad((vectors * weights).sum(), (q, k, v)) for vectors in (actual, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_query_that_sees_no_key_gets_zeros_as_in_torch() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (5, 7, 7))
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[..., 0] = True
    mask[1, :, 3:] = False
    actual, expected = (f(q, k, v, attn_mask=mask) for f in (attention, F.scaled_dot_product_attention))
    torch.testing.assert_close(actual, expected)
    assert not actual[1, :, 3:].any() and actual[1, :, :3].any()
    weights = torch.randn_like(actual)
    for a, b in zip(*(torch.autograd.grad((vectors * weights).sum(), (q, k, v)) for vectors in (actual, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["modernbert", "mistral"])
def test_short_texts_beside_long_ones_in_a_model_of_windows(kind: str) -> None:
    """The padding behind a short text is further from it than a window reaches; dropout of attention must not make it NaN."""
    from transformers import AutoConfig, AutoModel

    windows = {"modernbert": {"local_attention": 4}, "mistral": {"sliding_window": 4}}[kind]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=64, attention_dropout=0.1, **sizes, **special, **windows)
    model = AutoModel.from_config(config, dtype=torch.float32).train()
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 3:] = 0
    with CheapDropout():
        hidden = model(input_ids=torch.randint(3, 64, mask.shape) * mask, attention_mask=mask).last_hidden_state
    hidden[mask.bool()].square().sum().backward()
    assert torch.isfinite(hidden).all()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def test_attention_drops_probabilities_without_bias() -> None:
    """The mean over many draws is the attention without dropout, and one draw is not."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    plain = F.scaled_dot_product_attention(q, k, v)
    with CheapDropout():
        draws = torch.stack([F.scaled_dot_product_attention(q, k, v, dropout_p=0.25) for _ in range(4000)])
    assert not torch.allclose(draws[0], plain, atol=0.05)
    torch.testing.assert_close(draws.mean(0), plain, atol=0.05, rtol=0)


def test_causal_attention_is_left_to_torch() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 1, 6, 4)
    vectors = attention(q, q, q, is_causal=True)
    torch.testing.assert_close(vectors, F.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_modules_use_it_only_within_the_context() -> None:
    module, x = nn.Dropout(0.5), torch.ones(1000)
    torch.manual_seed(5)
    expected = dropout(x, 0.5)
    torch.manual_seed(5)
    with CheapDropout():
        vectors = module(x)
    torch.manual_seed(5)
    assert torch.equal(vectors, expected)
    assert not torch.equal(module(x), expected)
    assert torch.equal(module.eval()(x), x)
