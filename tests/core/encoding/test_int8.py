"""Quantized linear layers: the arithmetic against plain integers, whole encoders against float32."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tasks.core.encoding import int8, openvino_int8, packed
from tasks.core.encoding.encode import encode
from tasks.core.encoding.int8 import LARGEST, NARROW, Linear, Quantized, has_int8_layers, largest_weight
from tasks.core.encoding.packed import quantized_layers
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import load_tokenizer

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not has_int8_layers(), reason="this CPU has no AVX2, or torch no oneDNN")


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
            weight_scale = max(abs(value) for value in weight_NK[n].tolist()) / largest_weight()
            weights = [round(value / weight_scale) for value in weight_NK[n].tolist()]
            total = sum(a * w for a, w in zip(activations, weights, strict=True))
            assert float(actual_TN[t, n]) == pytest.approx(total * scale * weight_scale + float(bias_N[n]), rel=1e-4, abs=1e-4)
    exact_TN = x_TK @ weight_NK.t() + bias_N
    assert float((actual_TN - exact_TN).abs().max()) < 0.02 * float(exact_TN.abs().max())


def test_the_largest_sums_do_not_saturate() -> None:
    sign_K = torch.ones(384)
    sign_K[::3] = -1
    for rows in (1, 7, 32, 300):
        actual_TN = Linear.of(torch.stack([sign_K, -sign_K, sign_K.abs()] * 20), torch.zeros(60))(Quantized.of(sign_K.expand(rows, -1)))
        torch.testing.assert_close(actual_TN, torch.tensor([384.0, -384.0, 128.0] * 20).expand(rows, -1))


def test_weights_have_7_bits_where_the_cpu_has_no_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from tasks.core.encoding.int8 import largest_weight; print(largest_weight())"
    for limit, largest in (("AVX2", NARROW), ("", largest_weight())):
        environment = os.environ | {"ONEDNN_MAX_CPU_ISA": limit}
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        assert int(run.stdout) == largest
    weight_NK = torch.tensor([[1.0, -0.5], [0.0, 2.0]])
    monkeypatch.setattr(int8, "largest_weight", lambda: NARROW)
    assert Linear.of(weight_NK, torch.zeros(2)).scale_N.tolist() == pytest.approx([1 / 63, 2 / 63])


@pytest.fixture(scope="module")
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(similarity="cosine")).document


@pytest.mark.parametrize("engine", ["", "OpenVINO"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_encoder_stays_close_and_a_row_keeps_its_bits(
    pooling: Literal["mean", "cls"], engine: str, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine and not (openvino_int8.installed() and largest_weight() == LARGEST):
        pytest.skip("OpenVINO is not installed, or this CPU has no VNNI")
    tower = load_towers(tiny_encoder, Shape(pooling=pooling, similarity="cosine")).document
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, size=40)
    flat = rng.integers(1000, 30000, size=lengths.sum()).astype(np.uint16)
    tokens = Tokens(flat, np.concatenate([[0], np.cumsum(lengths)]), np.arange(40, dtype=np.int32), Path(), 0, 64, "", "")
    monkeypatch.setattr(openvino_int8, "installed", lambda: engine)
    name, layers = quantized_layers(tower, load_tokenizer(tiny_encoder), CPU) or ("", None)
    weights = "" if largest_weight() == LARGEST else " with 7-bit weights"
    assert name.removesuffix(f", {engine}") in (f"int8{weights} and bf16", f"int8{weights} and fp32")
    rows = np.arange(40)
    exact, quantized = (encode(tower, tokens, rows, 256, CPU, layers=each) for each in (None, layers))
    assert (quantized * exact).sum(axis=1).min() > 0.99
    assert np.abs(quantized - exact).max() > 1e-4, "these are not the vectors of float32"
    np.testing.assert_array_equal(quantized, encode(tower, tokens, rows, 256, CPU, layers=layers))


def test_which_engine(tower: Encoder, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    monkeypatch.setattr(packed, "largest_weight", lambda: LARGEST)
    if engine := openvino_int8.installed():
        assert (quantized_layers(tower, tokenizer, CPU) or [""])[0].endswith(f", {engine}")
    monkeypatch.setattr(openvino_int8, "has_graph", lambda _: False)
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        monkeypatch.setattr(packed, "compute_dtype", lambda *_, dtype=dtype: dtype)
        assert (quantized_layers(tower, tokenizer, CPU) or [""])[0] == f"int8 and {word}"
    monkeypatch.setattr(openvino_int8, "has_graph", lambda _: True)
    monkeypatch.setattr(openvino_int8, "installed", lambda: "OpenVINO")
    monkeypatch.setattr(packed, "largest_weight", lambda: NARROW)
    assert (quantized_layers(tower, tokenizer, CPU) or [""])[0] == "int8 with 7-bit weights and fp32", "OpenVINO is slower there"
    assert quantized_layers(tower, tokenizer, torch.device("meta")) is None
    monkeypatch.setattr(packed, "has_int8_layers", lambda: False)
    assert quantized_layers(tower, tokenizer, CPU) is None
