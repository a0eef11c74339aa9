"""Rows without padding: runs of equal lengths, blocks, and the attention of a row to itself alone, against plain loops."""

import math
import warnings
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, BertConfig

from tasks.core.encoding.int8 import has_int8_layers
from tasks.core.encoding.packed import (
    INNER_ROWS,
    LANES,
    PAD,
    Packed,
    _attended,
    _blocks,
    _round_up,
    _runs,
    fused_layers,
    has_fused_layers,
    int8_layers,
    plain_layers,
)
from tasks.core.models.bi_encoder import Encoder
from tasks.core.models.folder import Shape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("lengths", [[1], [16], [21, 21, 16, 16, 16, 5, 1, 1], [33, 17, 16, 15, 2]])
def test_a_row_attends_to_itself_alone(lengths: list[int], alone: bool) -> None:
    """Windows reach into the next row, and past the last one, where all values are large: none may leak in."""
    heads, width = 2, 6
    total = sum(lengths)
    rows = max(total + LANES, PAD)
    draw = torch.Generator().manual_seed(3)
    qkv_TK = torch.randn(rows, 3 * width, generator=draw, dtype=torch.float64)
    qkv_TK[total:] = 50
    x_TH, context_TH = torch.randn(rows, width, generator=draw, dtype=torch.float64), torch.zeros(rows, width, dtype=torch.float64)
    expected = torch.zeros(total, width, dtype=torch.float64)
    starts = np.cumsum([0, *lengths])
    for start, end in pairwise(starts):
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            query, key, value = (qkv_TK[start:end, n * width : (n + 1) * width][:, part] for n in range(3))
            expected[start:end, part] = torch.softmax(query @ key.T / math.sqrt(width // heads), 1) @ value
    runs = _runs(np.array(lengths), torch.float64)
    actual_x, actual = _attended(qkv_TK, runs, heads, x_TH, context_TH, alone)
    if alone:
        assert len(actual) == len(actual_x) == PAD, "a row for each text, and spare ones"
        expected, x_TH = expected[starts[:-1]], x_TH[starts[:-1]]
        actual, actual_x = actual[: len(lengths)], actual_x[: len(lengths)]
    torch.testing.assert_close(actual[: len(expected)], expected)
    assert torch.equal(actual_x, x_TH)


def test_rows_of_one_length_are_a_run_with_a_mask_to_whole_lanes() -> None:
    runs = _runs(np.array([37, 32, 32, 32, 3, 3, 1]), torch.float32)
    assert [(run.start, run.count, run.length) for run in runs] == [(0, 1, 37), (37, 3, 32), (133, 2, 3), (139, 1, 1)]
    for run in runs:
        if run.length == 32:
            assert run.mask is None
            continue
        lanes = LANES * math.ceil(run.length / LANES)
        assert run.mask is not None and run.mask.shape == (1, 1, run.length, lanes) and run.mask.dtype == torch.float32
        assert run.mask[0, 0].tolist() == [[0.0] * run.length + [-math.inf] * (lanes - run.length)] * run.length


@pytest.mark.parametrize("most", [16, 100, 512, 1024])
def test_blocks_are_few_and_of_similar_size(most: int) -> None:
    for rows in range(PAD, 3000, PAD):
        bounds = _blocks(rows, most)
        sizes = np.diff(bounds)
        assert bounds[0] == 0 and bounds[-1] == rows and len(sizes) == math.ceil(rows / most)
        assert (sizes % PAD == 0).all() and sizes.min() > 0 and sizes.max() - sizes.min() <= PAD and sizes.max() < most + PAD


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_rounded_up_and_at_least_some_for_each_thread(threads: int) -> None:
    torch.set_num_threads(threads)
    for rows in range(1, 200):
        assert _round_up(rows) == min(size for size in range(0, 300, PAD) if size >= max(rows, PAD * threads))


def test_what_is_not_packed() -> None:
    """Another pooling, prompts that are not pooled, tokens that do not see later ones, adapted layers, and a training."""
    cpu = torch.device("cpu")

    def encoder(shape: Shape, **values: bool) -> Encoder:
        config = BertConfig(vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, **values)
        return Encoder(AutoModel.from_config(config), shape).eval()

    for pooling in ("cls", "mean"):
        assert Packed.of(encoder(Shape(pooling=pooling)), cpu) is not None
    for pooling in ("last", "cls+mean"):
        assert Packed.of(encoder(Shape(pooling=pooling)), cpu) is None
    assert Packed.of(encoder(Shape(pooling="mean", pools_prompt=False)), cpu) is None
    assert Packed.of(encoder(Shape(pooling="mean"), is_decoder=True), cpu) is None
    assert Packed.of(encoder(Shape(pooling="mean")).train(), cpu) is None
    adapted = encoder(Shape(pooling="mean"))
    adapted.transformer = get_peft_model(adapted.transformer, LoraConfig(target_modules=["query"])).base_model.model
    assert Packed.of(adapted.eval(), cpu) is None


def test_bf16_is_fused_where_onednn_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    assert has_fused_layers() is bool(available and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert has_fused_layers() is False
    for supported in (True, False):
        operations = {"_is_mkldnn_bf16_supported": lambda supported=supported: supported, "_linear_pointwise": None}
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
            patch.setattr(torch.ops, "mkldnn", SimpleNamespace(**operations, _reorder_linear_weight=None))
            assert has_fused_layers() is supported
            patch.setattr(torch.ops, "mkldnn", SimpleNamespace(**operations))
            assert has_fused_layers() is False, "a torch without one of the operations"


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("act", ["gelu", "relu"])
@pytest.mark.parametrize("kind", ["float64", "bf16", "int8"])
def test_layers_are_those_of_transformers(kind: str, act: str, first_only: bool) -> None:
    """Of three layers, in several blocks of inner activations; the filler at the end changes nothing."""
    if (kind == "bf16" and not has_fused_layers()) or (kind == "int8" and not has_int8_layers()):
        pytest.skip("not on this CPU")
    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48, hidden_act=act,
        initializer_range=0.2, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    model = AutoModel.from_config(config).eval().double()
    with torch.no_grad():
        for weight in model.encoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    lengths = [60, 45, 45, *[20] * 60, 7, 1, 1]
    size = _round_up(sum(lengths) + LANES)
    assert size > 2 * INNER_ROWS
    x_TH = torch.randn(size, 32, dtype=torch.float64)
    with torch.no_grad():
        alone = [model.encoder(x_TH[None, start:end]).last_hidden_state[0] for start, end in pairwise(np.cumsum([0, *lengths]))]
        expected = torch.stack([row[0] for row in alone]) if first_only else torch.cat(alone)
        make, dtype, most = {
            "float64": (plain_layers, torch.float64, 1e-12),
            "bf16": (fused_layers, torch.bfloat16, 0.02),
            "int8": (int8_layers, torch.float32, 0.04),
        }[kind]
        layers = make(model.to(dtype), first_only)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of an output of another size than its buffer's
            outputs = layers(x_TH.to(dtype), np.array(lengths))[: len(expected)].double()
    error = (outputs - expected).norm(dim=1) / expected.norm(dim=1)
    assert outputs.shape == expected.shape and float(error.mean()) < most and float(error.max()) < 10 * most
