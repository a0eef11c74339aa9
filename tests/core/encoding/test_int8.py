"""Quantized linear layers: the arithmetic against plain integers, whole encoders against float32."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tasks.core.encoding import openvino_int8, packed
from tasks.core.encoding.encode import encode
from tasks.core.encoding.int8 import Linear, Quantized, has_int8_layers
from tasks.core.encoding.packed import quantized_layers
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import load_tokenizer

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not has_int8_layers(), reason="this CPU has no VNNI, or torch no oneDNN")


def test_each_token_has_its_own_scale_and_zeros_stay_zeros() -> None:
    x_TK = torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [100.0, 50.0, -1.0]])
    quantized = Quantized.of(x_TK)
    assert quantized.values_TK.tolist() == [[192, 1, 128], [128, 128, 128], [255, 192, 127]], "63.5 is rounded to 64"
    assert quantized.scale_T1[[0, 2], 0].tolist() == pytest.approx([2 / 127, 100 / 127])


def test_products_are_those_of_plain_integers() -> None:
    generator = torch.Generator().manual_seed(0)
    x_TK, weight_NK = torch.randn(5, 48, generator=generator) * 3, torch.randn(32, 48, generator=generator)
    bias_N = torch.randn(32, generator=generator)
    actual_TN = Linear.of(weight_NK, bias_N)(Quantized.of(x_TK))
    for t in range(5):
        scale = max(abs(value) for value in x_TK[t].tolist()) / 127
        activations = [round(value / scale) for value in x_TK[t].tolist()]
        for n in range(32):
            weight_scale = max(abs(value) for value in weight_NK[n].tolist()) / 127
            weights = [round(value / weight_scale) for value in weight_NK[n].tolist()]
            total = sum(a * w for a, w in zip(activations, weights, strict=True))
            assert float(actual_TN[t, n]) == pytest.approx(total * scale * weight_scale + float(bias_N[n]), rel=1e-4, abs=1e-4)
    exact_TN = x_TK @ weight_NK.t() + bias_N
    assert float((actual_TN - exact_TN).abs().max()) < 0.02 * float(exact_TN.abs().max())


@pytest.fixture(scope="module")
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(similarity="cosine")).document


@pytest.mark.parametrize("engine", ["", "OpenVINO"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_encoder_stays_close_and_a_row_keeps_its_bits(
    pooling: Literal["mean", "cls"], engine: str, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine and not openvino_int8.installed():
        pytest.skip("OpenVINO is not installed")
    tower = load_towers(tiny_encoder, Shape(pooling=pooling, similarity="cosine")).document
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, size=40)
    flat = rng.integers(1000, 30000, size=lengths.sum()).astype(np.uint16)
    tokens = Tokens(flat, np.concatenate([[0], np.cumsum(lengths)]), np.arange(40, dtype=np.int32), Path(), 0, 64, "", "")
    monkeypatch.setattr(openvino_int8, "installed", lambda: engine)
    name, layers = quantized_layers(tower, load_tokenizer(tiny_encoder), CPU) or ("", None)
    assert name.removesuffix(f", {engine}") in ("int8 and bf16", "int8 and fp32")
    rows = np.arange(40)
    exact, quantized = (encode(tower, tokens, rows, 256, CPU, layers=each) for each in (None, layers))
    assert (quantized * exact).sum(axis=1).min() > 0.99
    assert np.abs(quantized - exact).max() > 1e-4, "these are not the vectors of float32"
    np.testing.assert_array_equal(quantized, encode(tower, tokens, rows, 256, CPU, layers=layers))


def test_which_engine(tower: Encoder, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    if engine := openvino_int8.installed():
        assert (quantized_layers(tower, tokenizer, CPU) or [""])[0].endswith(f", {engine}")
    monkeypatch.setattr(openvino_int8, "has_graph", lambda _: False)
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        monkeypatch.setattr(packed, "compute_dtype", lambda *_, dtype=dtype: dtype)
        assert (quantized_layers(tower, tokenizer, CPU) or [""])[0] == f"int8 and {word}"
    assert quantized_layers(tower, tokenizer, torch.device("meta")) is None
    monkeypatch.setattr(packed, "has_int8_layers", lambda: False)
    assert quantized_layers(tower, tokenizer, CPU) is None
