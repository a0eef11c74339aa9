"""The layers of an encoder built like BERT as a graph of OpenVINO (extra `openvino`) in 8-bit integers, for CPUs with VNNI.

    m_K = max |x_K|,  v_K = max |w_K|                 each channel of a linear layer's inputs, over CALIBRATION_ROWS; of its weights
    s_K = m_K^a / v_K^(1 - a),  a = SMOOTHING         (SmoothQuant, arXiv:2211.10438, Eq. 4)
    x / s_K ~ (u - z) (high - low) / 255              activations: unsigned, one scale for all tokens, fixed by calibration
    w s_K ~ t_N v,  t_N = max |w_N s| / 127           weights: signed, a scale for each output

A fixed scale takes no time while encoding. Outliers in a few channels, which every BERT has, would leave little of it to the others, so
part of them is moved to the weights. Texts for calibration are random words of the tokenizer's own vocabulary: vectors depend on the
encoder and not on the corpus, so encoded shards stay valid as a corpus grows.
Attention, softmax, norms, and residuals are not quantized.

Shapes: B rows, L tokens of the longest row, T tokens of a batch (and a few of padding), K inputs, N outputs, H hidden width, A heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tasks.core.machine.devices import compute_dtype, one_thread
from tasks.core.tables.ids import Ints, concat_ranges

Floats = npt.NDArray[np.float32]
CALIBRATION_ROWS, CALIBRATION_TOKENS = 128, 64
SMOOTHING = 0.75  # of .5, .75, and .95 the closest to float32 on MiniLM
LEVELS = 256  # of activations; weights have one less, so that they are symmetric
SMALLEST = 1e-5
MASKED = -1e9
PAD = 16  # tokens: OpenVINO compiles for each length, and keeps the result
GELU = {"gelu": "ERF", "gelu_new": "TANH", "gelu_pytorch_tanh": "TANH"}  # torch's and transformers' names, and OpenVINO's


def installed() -> str:
    """The installed OpenVINO and its version, in words; empty if there is none."""
    try:
        return f"OpenVINO {version('openvino')}"
    except PackageNotFoundError:
        return ""


def has_graph(transformer: Any) -> bool:
    """Whether a transformer built like BERT can be such a graph."""
    return transformer.config.hidden_act in (*GELU, "relu", "silu")


def random_texts(tokenizer: Any, longest: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [CALIBRATION_ROWS, L] of random texts, L at most CALIBRATION_TOKENS and `longest`; the same for the same tokenizer."""
    most = min(CALIBRATION_TOKENS, longest or CALIBRATION_TOKENS)
    draw = np.random.default_rng(0)
    ids = np.setdiff1d(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64), tokenizer.all_special_ids)
    texts = [tokenizer.decode(row.tolist()) for row in draw.choice(ids, (CALIBRATION_ROWS, CALIBRATION_TOKENS))]
    encoded = tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


@dataclass(frozen=True)
class Range:
    """The least and the largest value [K] of each channel of a linear layer's inputs."""

    low_K: Floats
    high_K: Floats

    def joined(self, other: "Range") -> "Range":
        return Range(np.minimum(self.low_K, other.low_K), np.maximum(self.high_K, other.high_K))


def ranges(transformer: Any, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> Mapping[nn.Module, Range]:
    """The range of each linear layer's inputs in a transformer (float32, eval mode) over some texts."""
    range_of: dict[nn.Module, Range] = {}
    rows = 8

    def note(token_mask_BL: torch.Tensor, linear: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        x_TK = inputs[0][token_mask_BL]
        batch_range = Range(x_TK.amin(0).numpy(), x_TK.amax(0).numpy())
        range_of[linear] = batch_range.joined(range_of[linear]) if linear in range_of else batch_range

    linears = [module for module in transformer.encoder.modules() if isinstance(module, nn.Linear)]
    with torch.inference_mode(), one_thread():  # with several, sums have other last bits
        for start in range(0, len(ids_BL), rows):
            ids, mask = ids_BL[start : start + rows], mask_BL[start : start + rows]
            hooks = [linear.register_forward_pre_hook(partial(note, mask.bool())) for linear in linears]
            try:
                transformer(input_ids=ids, attention_mask=mask)
            finally:
                for hook in hooks:
                    hook.remove()
    return range_of


@dataclass(frozen=True)
class Smoothed:
    """How the common input of some linear layers is quantized.

    `scale_K` has each channel's divisor; `low` and `high` are the range after the division, in which 0 is an integer.
    """

    scale_K: Floats
    low: float
    high: float

    @classmethod
    def of(cls, inputs: Range, weights_NK: Sequence[Floats]) -> "Smoothed":
        largest_K = np.maximum(np.maximum(np.abs(inputs.low_K), np.abs(inputs.high_K)), SMALLEST)
        weight_K = np.maximum(np.abs(np.concatenate(weights_NK)).max(0), SMALLEST)
        scale_K = (largest_K**SMOOTHING / weight_K ** (1 - SMOOTHING)).astype(np.float32)
        low, high = min(0.0, float((inputs.low_K / scale_K).min())), max(SMALLEST, float((inputs.high_K / scale_K).max()))
        step = (high - low) / (LEVELS - 1)
        zero = round(-low / step)
        return cls(scale_K, -zero * step, (LEVELS - 1 - zero) * step)


def openvino_layers(
    transformer: Any, ids_BL: torch.Tensor, mask_BL: torch.Tensor, first_only: bool = False
) -> Callable[[torch.Tensor, Ints], torch.Tensor]:
    """The layers of `transformer` (float32, eval mode), calibrated on texts.

    They are a function from embeddings [T, H] and the rows' lengths [B], which must not increase, to last hidden states [T, H], or with
    `first_only` those of the rows' first tokens [B, H]. As many threads as torch has may call it at once, with the same bits.
    """
    threads = torch.get_num_threads()
    settings = {
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # other workers have the other cores
        "INFERENCE_PRECISION_HINT": "bf16" if compute_dtype(torch.device("cpu"), "bf16") == torch.bfloat16 else "f32",
    }
    compiled = _core().compile_model(_graph(transformer, ranges(transformer, ids_BL, mask_BL), first_only), "CPU", settings)
    free: SimpleQueue[Any] = SimpleQueue()
    for _ in range(threads):
        free.put(compiled.create_infer_request())

    def forward(x_TH: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        row_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
        place_T = concat_ranges(0, lengths_B)
        longest = -(-int(lengths_B[0]) // PAD) * PAD
        x_BLH = np.zeros((len(lengths_B), longest, x_TH.shape[1]), dtype=np.float32)
        x_BLH[row_T, place_T] = x_TH[: len(row_T)].float().numpy()
        masked_BL = np.arange(x_BLH.shape[1]) >= lengths_B[:, None]
        out_TH = np.zeros((len(x_TH), x_TH.shape[1]), dtype=np.float32)
        request = free.get()
        try:
            request.infer({0: x_BLH, 1: np.where(masked_BL, np.float32(MASKED), np.float32(0))[:, None, None, :]})
            output_BLH = request.get_output_tensor(0).data
            if first_only:
                return torch.from_numpy(output_BLH[:, 0].copy())
            out_TH[: len(row_T)] = output_BLH[row_T, place_T]
        finally:
            free.put(request)
        return torch.from_numpy(out_TH)

    return forward


@cache
def _core() -> Any:
    """OpenVINO's runtime, kept until the process ends.

    It gives the thread that starts it another stack for signals, and frees that stack when it is freed itself. Where another thread dropped
    the last reference, the first thread's stack was gone: its next signal was a segmentation fault.
    """
    import openvino

    return openvino.Core()


def _graph(transformer: Any, input_ranges: Mapping[nn.Module, Range], first_only: bool) -> Any:
    """An OpenVINO model from embeddings [B, L, H] and a bias of attention scores [B, 1, 1, L] to last hidden states [B, L, H].

    With `first_only`, to those of first tokens [B, 1, H].
    """
    import openvino
    from openvino import opset13 as ops

    config = transformer.config
    width, heads, inner = config.hidden_size, config.num_attention_heads, config.hidden_act

    def constant(value: Any) -> Any:
        return ops.constant(np.asarray(value, dtype=np.float32))

    def integers(*values: int) -> Any:
        return ops.constant(np.asarray(values, dtype=np.int64))

    def quantized(x: Any, low: Any, high: Any, levels: int) -> Any:
        return ops.fake_quantize(x, constant(low), constant(high), constant(low), constant(high), levels)

    def linears(x: Any, *layers: nn.Linear) -> list[Any]:
        """Add linear layers with the same input; return their outputs."""
        weights = [layer.weight.detach().numpy() for layer in layers]
        smoothed = Smoothed.of(input_ranges[layers[0]], weights)
        scaled = quantized(ops.multiply(x, constant(1 / smoothed.scale_K[None, None])), smoothed.low, smoothed.high, LEVELS)
        outputs = []
        for layer, weight_NK in zip(layers, weights, strict=True):
            weight_NK = weight_NK * smoothed.scale_K
            largest_N1 = np.maximum(np.abs(weight_NK).max(1, keepdims=True), SMALLEST)
            product = ops.matmul(scaled, quantized(constant(weight_NK), -largest_N1, largest_N1, LEVELS - 1), False, True)
            outputs.append(ops.add(product, constant(layer.bias.detach().numpy()[None, None])))
        return outputs

    def normalized(x: Any, norm: nn.LayerNorm) -> Any:
        weight, bias = (constant(each.detach().numpy()[None, None]) for each in (norm.weight, norm.bias))
        return ops.add(ops.multiply(ops.mvn(x, integers(2), True, norm.eps, "inside_sqrt"), weight), bias)

    def by_head(x: Any, *order: int) -> Any:
        return ops.transpose(ops.reshape(x, integers(0, 0, heads, width // heads), True), integers(*order))

    def activated(x: Any) -> Any:
        if inner in GELU:
            return ops.gelu(x, GELU[inner])
        return ops.relu(x) if inner == "relu" else ops.swish(x)

    x = embeddings = ops.parameter([-1, -1, width], np.float32)
    bias = ops.parameter([-1, 1, 1, -1], np.float32)
    for layer in transformer.encoder.layer:
        attention, mixed = layer.attention.self, layer.attention.output
        query, key, value = linears(x, attention.query, attention.key, attention.value)
        if first_only and layer is transformer.encoder.layer[-1]:
            query, x = (ops.gather(each, integers(0), integers(1)) for each in (query, x))
        scores = ops.multiply(
            ops.matmul(by_head(query, 0, 2, 1, 3), by_head(key, 0, 2, 3, 1), False, False), constant((width // heads) ** -0.5)
        )
        shares = ops.softmax(ops.add(scores, bias), -1)
        context = ops.transpose(ops.matmul(shares, by_head(value, 0, 2, 1, 3), False, False), integers(0, 2, 1, 3))
        (added,) = linears(ops.reshape(context, integers(0, 0, width), True), mixed.dense)
        x = normalized(ops.add(added, x), mixed.LayerNorm)
        (widened,) = linears(x, layer.intermediate.dense)
        (added,) = linears(activated(widened), layer.output.dense)
        x = normalized(ops.add(added, x), layer.output.LayerNorm)
    return openvino.Model([ops.result(x)], [embeddings, bias], "layers")
