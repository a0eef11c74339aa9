"""OpenVINO's quantized layers: against the same sums written plainly, and whole encoders against float32."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from tasks.core.encoding import openvino_int8
from tasks.core.encoding.encode import encode
from tasks.core.encoding.int8 import LARGEST, has_int8_layers, largest_weight
from tasks.core.encoding.openvino_int8 import Range, Smoothed, has_graph, openvino_layers, random_texts, ranges
from tasks.core.encoding.packed import quantized_layers
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.models.folder import Shape
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(not openvino_int8.installed(), reason="OpenVINO is not installed")
multiplied = pytest.mark.skipif(
    not has_int8_layers() or largest_weight() < LARGEST, reason="this CPU has no VNNI, so sums saturate, or torch no oneDNN"
)
CPU = torch.device("cpu")
LENGTHS = np.array([9, 9, 5, 1])


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder: Path) -> Any:
    return load_tokenizer(tiny_encoder)


@pytest.fixture
def tower(tiny_encoder: Path) -> Encoder:
    return load_towers(tiny_encoder, Shape(similarity="cosine")).document


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not quantized is computed in float32, so that results can be compared."""
    monkeypatch.setattr(openvino_int8, "compute_dtype", lambda *_: torch.float32)


def random_embeddings(tower: Encoder, lengths: np.ndarray) -> torch.Tensor:
    """Embeddings [T, H] of random tokens, and some of padding."""
    ids = torch.randint(1000, 20000, (int(lengths.sum()) + 3,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        x_TH: torch.Tensor = tower.transformer.embeddings(input_ids=ids[None])[0]
    return x_TH


def round_to_grid(x: torch.Tensor, low: float, high: float, steps: int) -> torch.Tensor:
    """x on a grid of `steps` steps from low to high."""
    step = (high - low) / steps
    return ((x.clamp(low, high) - low) / step).round() * step + low


def reference_output(tower: Encoder, input_ranges: Any, x_TH: torch.Tensor, lengths: np.ndarray) -> torch.Tensor:
    """The layers, a row at a time, with float32 numbers on the grids of the integers."""
    config = tower.transformer.config
    heads = config.num_attention_heads

    def linears(x: torch.Tensor, *layers: Any) -> list[torch.Tensor]:
        weights = [layer.weight for layer in layers]
        largest = torch.tensor(np.maximum(np.abs(input_ranges[layers[0]].low_K), np.abs(input_ranges[layers[0]].high_K))).clamp_min(1e-5)
        scale = largest**0.75 / torch.cat(weights).abs().amax(0).clamp_min(1e-5) ** 0.25
        low = min(0.0, float((torch.tensor(input_ranges[layers[0]].low_K) / scale).min()))
        high = float((torch.tensor(input_ranges[layers[0]].high_K) / scale).max())
        step = (high - low) / 255
        low, high = -round(-low / step) * step, (255 - round(-low / step)) * step
        inputs = round_to_grid(x / scale, low, high, 255)
        outputs = []
        for layer, weight in zip(layers, weights, strict=True):
            scaled = weight * scale
            most = scaled.abs().amax(1, keepdim=True)
            outputs.append(inputs @ ((scaled / most * 127).round() * most / 127).t() + layer.bias)
        return outputs

    out, start = torch.zeros_like(x_TH), 0
    with torch.inference_mode():
        for length in lengths.tolist():
            x = x_TH[start : start + length]
            for layer in tower.transformer.encoder.layer:
                attention, mixed = layer.attention.self, layer.attention.output
                q, k, v = (
                    part.view(length, heads, -1).transpose(0, 1) for part in linears(x, attention.query, attention.key, attention.value)
                )
                context = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v
                x = mixed.LayerNorm(linears(context.transpose(0, 1).reshape(length, -1), mixed.dense)[0] + x)
                x = layer.output.LayerNorm(linears(F.gelu(linears(x, layer.intermediate.dense)[0]), layer.output.dense)[0] + x)
            out[start : start + length] = x
            start += length
    return out


@multiplied
@pytest.mark.usefixtures("in_float32")
def test_a_plain_loop_gives_the_same_outputs(tower: Encoder, tokenizer: Any) -> None:
    ids, mask = random_texts(tokenizer)
    x_TH = random_embeddings(tower, LENGTHS)
    actual_TH = openvino_layers(tower.transformer, ids, mask)(x_TH, LENGTHS)
    expected_TH = reference_output(tower, ranges(tower.transformer, ids, mask), x_TH, LENGTHS)
    assert actual_TH.shape == x_TH.shape and actual_TH.dtype == torch.float32
    real = slice(0, int(LENGTHS.sum()))
    difference = (actual_TH[real] - expected_TH[real]).abs()
    with torch.inference_mode():
        exact_TH = tower.transformer.encoder(x_TH[None, :9])[0][0]
    rounding = (expected_TH[:9] - exact_TH).abs().mean()
    assert difference.mean() < 0.2 * rounding, "far closer to these integers than these are to float32"
    assert actual_TH[int(LENGTHS.sum()) :].abs().sum() == 0


@multiplied
@pytest.mark.usefixtures("in_float32")
def test_outputs_of_first_tokens_alone_are_among_those_of_all(tower: Encoder, tokenizer: Any) -> None:
    texts, x_TH = random_texts(tokenizer), random_embeddings(tower, LENGTHS)
    all_TH, first_BH = (openvino_layers(tower.transformer, *texts, firsts)(x_TH, LENGTHS) for firsts in (False, True))
    assert first_BH.shape == (len(LENGTHS), x_TH.shape[1])
    torch.testing.assert_close(first_BH, all_TH[np.cumsum(LENGTHS) - LENGTHS], atol=1e-4, rtol=1e-4)


@multiplied
@pytest.mark.usefixtures("in_float32")
def test_a_row_does_not_see_the_padding_of_others(tower: Encoder, tokenizer: Any) -> None:
    layers = openvino_layers(tower.transformer, *random_texts(tokenizer))
    x_TH = random_embeddings(tower, LENGTHS)
    together, starts = layers(x_TH, LENGTHS), np.cumsum(LENGTHS) - LENGTHS
    for start, length in zip(starts, LENGTHS, strict=True):
        alone = layers(x_TH[start : start + length], np.array([length]))
        torch.testing.assert_close(together[start : start + length], alone, atol=0.05, rtol=0.05)


@multiplied
def test_threads_side_by_side_give_the_same_bits(tower: Encoder, tokenizer: Any) -> None:
    threads_before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            layers = openvino_layers(tower.transformer, *random_texts(tokenizer))
            with ThreadPoolExecutor(4) as pool:
                results += pool.map(lambda n: layers(random_embeddings(tower, LENGTHS[n % 3 :]), LENGTHS[n % 3 :]), range(12))  # noqa: B023
    finally:
        torch.set_num_threads(threads_before)
    for n, outputs in enumerate(results):
        assert torch.equal(outputs, results[n % 3])


def test_ranges_are_those_of_what_the_layers_are_given(tower: Encoder, tokenizer: Any) -> None:
    ids, mask = random_texts(tokenizer)
    assert len(ids) == 128 and ids.shape[1] <= 64 and (ids[:, 0] == tokenizer.cls_token_id).all()
    assert torch.equal(ids, random_texts(tokenizer)[0])
    padded = tokenizer(["one", "a longer text of eight or nine words"] * 6, padding=True, return_tensors="pt")
    ids, mask = padded["input_ids"], padded["attention_mask"]
    input_ranges, first = ranges(tower.transformer, ids, mask), tower.transformer.encoder.layer[0].attention.self.query
    with torch.inference_mode():
        x_TH = tower.transformer.embeddings(input_ids=ids)[mask.bool()]
    np.testing.assert_allclose(input_ranges[first].low_K, x_TH.amin(0), atol=1e-5)
    np.testing.assert_allclose(input_ranges[first].high_K, x_TH.amax(0), atol=1e-5)
    assert len(input_ranges) == 6 * len(tower.transformer.encoder.layer), "all linear layers, and not the pooler's"


def test_a_channel_of_outliers_moves_to_its_weights() -> None:
    observed = Range(np.array([-1, -2, 0], dtype=np.float32), np.array([1, 100, 0], dtype=np.float32))
    smoothed = Smoothed.of(observed, [np.array([[0.5, 0.25, 0], [1, 0.1, 0]], dtype=np.float32)])
    np.testing.assert_allclose(smoothed.scale_K[:2], [1, 100**0.75 / 0.25**0.25], rtol=1e-6)
    step = (smoothed.high - smoothed.low) / 255
    assert smoothed.low == pytest.approx(-1, abs=step / 2) and smoothed.high == pytest.approx(100 / (100**0.75 / 0.25**0.25), abs=step / 2)
    assert -smoothed.low / step == pytest.approx(round(-smoothed.low / step)), "0 is an integer"
    assert np.isfinite(smoothed.scale_K).all()


@multiplied
def test_an_encoder_stays_close(tower: Encoder, tokenizer: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, size=40)
    flat = rng.integers(1000, 30000, size=lengths.sum()).astype(np.uint16)
    tokens = Tokens(flat, np.concatenate([[0], np.cumsum(lengths)]), np.arange(40, dtype=np.int32), Path(), 0, 64, "", "")
    layers = openvino_layers(tower.transformer, *random_texts(tokenizer))
    exact = encode(tower, tokens, np.arange(40), 256, CPU)
    quantized = encode(tower, tokens, np.arange(40), 256, CPU, layers=layers)
    assert (quantized * exact).sum(axis=1).min() > 0.98 and (quantized * exact).sum(axis=1).mean() > 0.99
    assert np.abs(quantized - exact).max() > 1e-4, "these are not the vectors of float32"
    np.testing.assert_array_equal(quantized, encode(tower, tokens, np.arange(40), 256, CPU, layers=layers))


@multiplied
@pytest.mark.parametrize(("activation", "module"), [("gelu_new", nn.GELU("tanh")), ("relu", nn.ReLU()), ("silu", nn.SiLU())])
def test_other_activations(activation: str, module: nn.Module, tower: Encoder, tokenizer: Any) -> None:
    other = deepcopy(tower)
    other.transformer.config.hidden_act = activation
    for layer in other.transformer.encoder.layer:
        layer.intermediate.intermediate_act_fn = module
    assert has_graph(other.transformer)
    x_TH = random_embeddings(other, np.array([9]))
    with torch.inference_mode():
        expected_TH = other.transformer.encoder(x_TH[None, :9])[0][0]
    actual_TH = openvino_layers(other.transformer, *random_texts(tokenizer))(x_TH, np.array([9]))[:9]
    assert F.cosine_similarity(actual_TH, expected_TH).min() > 0.98


@multiplied
def test_a_model_of_few_positions_is_calibrated_on_short_texts(tower: Encoder, tokenizer: Any) -> None:
    torch.manual_seed(0)
    small = BertModel(BertConfig(**tower.transformer.config.to_diff_dict() | {"max_position_embeddings": 20})).eval()
    assert random_texts(tokenizer, 20)[0].shape[1] == 20
    name, _ = quantized_layers(Encoder(small, tower.shape).eval(), tokenizer, CPU) or ("", None)
    assert "OpenVINO" in name


def test_an_activation_that_is_not_known(tower: Encoder) -> None:
    tower.transformer.config.hidden_act = "mish"
    assert not has_graph(tower.transformer)


SIGNAL = """
import faulthandler, signal, sys, threading
import numpy as np, torch
from pathlib import Path
from tasks.core.encoding.openvino_int8 import openvino_layers, random_texts
from tasks.core.models.bi_encoder import load_towers
from tasks.core.tokens.tokenizer import load_tokenizer

faulthandler.enable()  # Python's own stack for signals
folder = Path(sys.argv[1])
transformer = load_towers(folder).document.transformer
held = [openvino_layers(transformer, *random_texts(load_tokenizer(folder)))]
held[0](torch.zeros(4, transformer.config.hidden_size), np.array([4]))
last = threading.Thread(target=held.clear)
last.start()
last.join()
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_handled_after_a_thread_dropped_the_layers(tiny_encoder: Path) -> None:
    """It was a segmentation fault: a stopped stage died without tidying up."""
    process = subprocess.run([sys.executable, "-c", SIGNAL, str(tiny_encoder)], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "handled\n"), process.stderr[-500:]
