"""Encoders built like BERT (Devlin et al. 2019) without padding: faster inference, on a CPU and on GPUs with flash attention.

The tokens of a batch's rows are concatenated in one matrix, so no linear layer, activation, or norm is spent on
padding and no attention on masked keys. In float32, buffers are reused by every layer, and biases and residuals are part of
the matrix products. In bfloat16, oneDNN's linear layers do that: weights are reordered once per call of `encode`, and bias, GELU, and
residual are added before a sum is rounded. `tasks.core.encoding.int8` is the arithmetic of quantized layers,
`tasks.core.encoding.openvino_int8` has these in OpenVINO, `tasks.core.encoding.varlen` a GPU's layers.

Shapes: B rows, L tokens of a row, T tokens of a batch (and a few of padding), H hidden width, I inner width, A attention heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tasks.core.encoding import openvino_int8
from tasks.core.encoding.int8 import LARGEST, Linear, Quantized, has_int8_layers, largest_weight
from tasks.core.encoding.varlen import has_varlen_layers, varlen_layers
from tasks.core.machine.devices import compute_dtype, to_device
from tasks.core.models.bi_encoder import Encoder
from tasks.core.models.hidden_states.first_tokens import built_like_bert
from tasks.core.models.hidden_states.unpadded_rows import first_places, first_position, ids_and_positions, round_up, with_filler_rows
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import longest_text

PAD = 16  # tokens
LANES = 16  # a multiple of the scores that torch's attention computes at once, on any CPU
INNER_ROWS = 512  # inner activations in memory at a time, per thread: they stay in its cache
QUANTIZED_ROWS = 128  # the same for quantized layers, which pass over them several times, if the CPU has VNNI: else products take longer
# From embeddings [T, H] and the rows' lengths [B] to last hidden states, of all tokens [T, H] or, for pooling cls, of the rows' first ones
# [R, H], of which those after the first B are spare.
Layers = Callable[[torch.Tensor, Ints], torch.Tensor]


@dataclass(frozen=True)
class Run:
    """Rows of the same length, one after another."""

    start: int  # first token
    count: int
    length: int
    mask: torch.Tensor | None = None  # [1, 1, L, S] of a window of S tokens on a row; None where L is a multiple of LANES


@dataclass(frozen=True)
class Packed:
    """An encoder with a BERT transformer, its layers prepared for rows without padding."""

    encoder: Encoder
    first_position: int
    layers: Layers

    @classmethod
    def of(cls, encoder: Encoder, device: torch.device, layers: Layers | None = None) -> "Packed | None":
        """The packed form of `encoder`, with `layers` or else its own.

        None for another architecture, pooling, device, or dtype, in training, with adapted layers, or where prompts are not pooled.
        """
        transformer = encoder.transformer
        first = first_position(transformer.config)
        pooled = encoder.shape.pooling in ("cls", "mean") and encoder.shape.pools_prompt
        if first is None or not built_like_bert(transformer) or not pooled or torch.is_autocast_enabled(device.type) or encoder.training:
            return None
        if any(type(linear) is not nn.Linear for layer in transformer.encoder.layer for linear in _linear_layers(layer)):
            return None  # an adapted layer multiplies by more than its weight
        layers = layers or _own_layers(encoder, device)
        return None if layers is None else cls(encoder, first, layers)

    def vectors(self, tokens: Tokens, rows: Ints, lengths_B: Ints) -> torch.Tensor:
        """Vectors [B, D] of `rows`, on the encoder's device; `lengths_B` must not increase."""
        device = next(self.encoder.parameters()).device
        ends_B = np.cumsum(lengths_B)
        total = int(ends_B[-1])
        size = _round_up(int((ends_B + -lengths_B % LANES).max())) if device.type == "cpu" else round_up(total)  # up to every window's end
        ids_1T, positions_1T = (
            to_device(values_T, device)[None] for values_T in ids_and_positions(tokens, rows, lengths_B, self.first_position, size)
        )
        embedded_TH = self.encoder.transformer.embeddings(input_ids=ids_1T, position_ids=positions_1T)[0]
        hidden_TH = self.layers(embedded_TH, lengths_B if device.type == "cpu" else with_filler_rows(lengths_B, size)).float()
        if self.encoder.shape.pooling == "cls":
            pooled_BH = hidden_TH[: len(rows)]
        else:  # unsafe: without reading the lengths back to check them
            lengths = to_device(torch.from_numpy(lengths_B), device)
            pooled_BH = torch.segment_reduce(hidden_TH[:total], "mean", lengths=lengths, unsafe=device.type != "cpu")
        if device.type != "cpu":
            return self.encoder.finish(pooled_BH)
        spare = _round_up(len(rows)) - len(rows)
        return self.encoder.finish(F.pad(pooled_BH, (0, 0, 0, spare)))[: len(rows)]


def quantized_layers(encoder: Encoder, tokenizer: Any, device: torch.device) -> tuple[str, Layers] | None:
    """The arithmetic in words, and the layers of `encoder` (float32, eval mode) in 8-bit integers; None if nothing here computes so."""
    if device.type != "cpu" or not has_int8_layers() or Packed.of(encoder, device) is None:
        return None
    first_only = encoder.shape.pooling == "cls"
    others = "bf16" if compute_dtype(device, "bf16") == torch.bfloat16 else "fp32"  # where layers are not quantized
    if largest_weight() < LARGEST:  # OpenVINO is slower than float32 there
        return f"int8 with 7-bit weights and {others}", int8_layers(encoder.transformer, first_only)
    if (engine := openvino_int8.installed()) and openvino_int8.has_graph(encoder.transformer):
        texts = openvino_int8.random_texts(tokenizer, longest_text(encoder.transformer))
        layers = openvino_int8.openvino_layers(encoder.transformer, *texts, first_only)
        return f"int8 and {others}, {engine}", layers
    return f"int8 and {others}", int8_layers(encoder.transformer, first_only)


def _own_layers(encoder: Encoder, device: torch.device) -> Layers | None:
    """The layers in the transformer's dtype on `device`; None where there is no way to run them packed."""
    transformer, first_only = encoder.transformer, encoder.shape.pooling == "cls"
    if device.type != "cpu":
        if not has_varlen_layers(transformer, device):
            return None
        return varlen_layers(transformer, [_query_key_value(layer) for layer in transformer.encoder.layer], first_only)
    if transformer.dtype == torch.float32:
        return plain_layers(transformer, first_only)
    return fused_layers(transformer, first_only) if transformer.dtype == torch.bfloat16 and has_fused_layers() else None


def plain_layers(transformer: Any, first_only: bool = False) -> Layers:
    """The layers in any dtype, from torch's own operations."""
    heads, first_only_layer = transformer.config.num_attention_heads, transformer.encoder.layer[-1] if first_only else None
    products = [(weight_KH.t(), bias_K) for weight_KH, bias_K in map(_query_key_value, transformer.encoder.layer)]

    def forward(x_TH: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        total, width = x_TH.shape
        sum_TH, context_TH = torch.empty_like(x_TH), torch.zeros_like(x_TH)
        qkv_TK = x_TH.new_empty(total, 3 * width)
        runs = _runs(lengths_B, x_TH.dtype)
        most = INNER_ROWS * torch.get_num_threads()
        inner_TI = x_TH.new_empty(min(total, most), transformer.config.intermediate_size)
        for layer, (weight_HK, bias_K) in zip(transformer.encoder.layer, products, strict=True):
            torch.addmm(bias_K, x_TH, weight_HK, out=qkv_TK)
            x_TH, context_TH = _attended(qkv_TK, runs, heads, x_TH, context_TH, layer is first_only_layer)
            sum_TH = sum_TH[: len(x_TH)]
            mixed, inner, outer = layer.attention.output, layer.intermediate, layer.output
            torch.add(x_TH, mixed.dense.bias, out=sum_TH).addmm_(context_TH, mixed.dense.weight.t())
            x_TH = mixed.LayerNorm(sum_TH)
            torch.add(x_TH, outer.dense.bias, out=sum_TH)
            for start, end in pairwise(_blocks(len(x_TH), most)):
                inner_BI = torch.addmm(inner.dense.bias, x_TH[start:end], inner.dense.weight.t(), out=inner_TI[: end - start])
                sum_TH[start:end].addmm_(inner.intermediate_act_fn(inner_BI), outer.dense.weight.t())
            x_TH = outer.LayerNorm(sum_TH)
        return x_TH

    return forward


def has_fused_layers() -> bool:
    """Whether this torch has oneDNN and the (private) operations used here, and oneDNN has bfloat16 on this CPU."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    has_operations = all(
        hasattr(torch.ops.mkldnn, name) for name in ("_is_mkldnn_bf16_supported", "_linear_pointwise", "_reorder_linear_weight")
    )
    return has_operations and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fused_layers(transformer: Any, first_only: bool = False) -> Layers:
    """The layers in bfloat16, from the operations that torch's own compiler uses on a CPU (torch/_inductor/mkldnn_lowerings.py)."""
    heads, first_only_layer = transformer.config.num_attention_heads, transformer.encoder.layer[-1] if first_only else None
    linear = torch.ops.mkldnn._linear_pointwise

    def reordered(weight_OI: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)
        return weight

    products = [_query_key_value(layer) for layer in transformer.encoder.layer]
    weights = [
        (
            reordered(qkv_weight),
            qkv_bias,
            *(reordered(each.weight) for each in _dense_layers(layer)),
        )
        for layer, (qkv_weight, qkv_bias) in zip(transformer.encoder.layer, products, strict=True)
    ]
    gelu = transformer.config.hidden_act == "gelu"

    def forward(x_TH: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        context_TH = torch.zeros_like(x_TH)
        runs = _runs(lengths_B, x_TH.dtype)
        for layer, layer_weights in zip(transformer.encoder.layer, weights, strict=True):
            qkv_weight, qkv_bias, mixed_weight, inner_weight, outer_weight = layer_weights
            qkv_TK = linear(x_TH, qkv_weight, qkv_bias, "none", [], "")
            x_TH, context_TH = _attended(qkv_TK, runs, heads, x_TH, context_TH, layer is first_only_layer)
            mixed, inner, outer = layer.attention.output, layer.intermediate, layer.output
            x_TH = mixed.LayerNorm(linear.binary(context_TH, x_TH, mixed_weight, mixed.dense.bias, "add"))
            if gelu:
                inner_TI = linear(x_TH, inner_weight, inner.dense.bias, "gelu", [], "none")
            else:
                inner_TI = inner.intermediate_act_fn(linear(x_TH, inner_weight, inner.dense.bias, "none", [], ""))
            x_TH = outer.LayerNorm(linear.binary(inner_TI, x_TH, outer_weight, outer.dense.bias, "add"))
        return x_TH

    return forward


def int8_layers(transformer: Any, first_only: bool = False) -> Layers:
    """The layers with their linear layers quantized; attention in bfloat16 if this CPU multiplies that, the rest in float32."""
    heads, first_only_layer = transformer.config.num_attention_heads, transformer.encoder.layer[-1] if first_only else None
    dtype = compute_dtype(torch.device("cpu"), "bf16")
    linears = [
        (Linear.of(*_query_key_value(layer)), *(Linear.of(each.weight, each.bias) for each in _dense_layers(layer)))
        for layer in transformer.encoder.layer
    ]

    def forward(x_TH: torch.Tensor, lengths_B: Ints) -> torch.Tensor:
        x_TH = x_TH.float()
        context_TH = torch.zeros_like(x_TH, dtype=dtype)
        runs = _runs(lengths_B, dtype)
        most = (QUANTIZED_ROWS if largest_weight() == LARGEST else INNER_ROWS) * torch.get_num_threads()
        for layer, (qkv, mix, widen, narrow) in zip(transformer.encoder.layer, linears, strict=True):
            qkv_TK = qkv(Quantized.of(x_TH)).to(dtype)
            x_TH, context_TH = _attended(qkv_TK, runs, heads, x_TH, context_TH, layer is first_only_layer)
            x_TH = _norm(layer.attention.output.LayerNorm, mix(Quantized.of(context_TH.float())).add_(x_TH))
            activation = layer.intermediate.intermediate_act_fn
            sum_TH = torch.empty_like(x_TH)
            for start, end in pairwise(_blocks(len(x_TH), most)):
                inner_BI = activation(widen(Quantized.of(x_TH[start:end])))
                torch.add(narrow(Quantized.of(inner_BI)), x_TH[start:end], out=sum_TH[start:end])
            x_TH = _norm(layer.output.LayerNorm, sum_TH)
        return x_TH

    return forward


def _dense_layers(layer: Any) -> tuple[Any, Any, Any]:
    """A layer's linear layers after attention."""
    return layer.attention.output.dense, layer.intermediate.dense, layer.output.dense


def _linear_layers(layer: Any) -> tuple[Any, ...]:
    attention = layer.attention.self
    return attention.query, attention.key, attention.value, *_dense_layers(layer)


def _norm(norm: Any, x_TH: torch.Tensor) -> torch.Tensor:
    """Layer normalization in float32."""
    return F.layer_norm(x_TH, norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps)


def _attended(
    qkv_TK: torch.Tensor, runs: Sequence[Run], heads: int, x_TH: torch.Tensor, context_TH: torch.Tensor, first_only: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill `context_TH` with the attention within each row, given the queries, keys, and values of all tokens; return `x_TH` and it.

    If `first_only`, both are only those of the rows' first tokens [R, H], with spare ones at the end.

    torch's attention exponentiates LANES scores at a time and those left over one by one, which would take most of its time. So a row sees
    keys and values through a window of whole LANES, whose last tokens, the next row's, are masked.
    """
    for run in runs:
        part, query_count = slice(run.start, run.start + run.count * run.length), 1 if first_only else run.length
        q, k, v = qkv_TK[part].view(run.count, run.length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mask = None
        if run.mask is not None:
            mask = run.mask[:, :, :query_count]
            windows = qkv_TK[run.start :].unfold(0, mask.shape[-1], run.length)[: run.count]  # [count, K, tokens]
            _, k, v = windows.view(run.count, 3, heads, -1, windows.shape[-1]).permute(1, 0, 2, 4, 3)
        mixed = F.scaled_dot_product_attention(q[:, :, :query_count], k, v, attn_mask=mask)
        context_TH[part].view(run.count, run.length, heads, -1)[:, :query_count].copy_(mixed.transpose(1, 2))
    if not first_only:
        return x_TH, context_TH
    lengths_B = np.concatenate([np.full(run.count, run.length) for run in runs])
    first_R = torch.from_numpy(first_places(lengths_B, _round_up(len(lengths_B))))
    return x_TH[first_R], context_TH[first_R]


def _query_key_value(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [3H, H] and bias [3H] of the three products of a layer's attention."""
    projections = _linear_layers(layer)[:3]
    return torch.cat([projection.weight for projection in projections]), torch.cat([projection.bias for projection in projections])


def _runs(lengths_B: Ints, dtype: torch.dtype) -> list[Run]:
    """The runs of a batch whose attention is computed in `dtype`."""
    runs, start = list[Run](), 0
    for length, rows in groupby(lengths_B.tolist()):
        run = Run(start, len(list(rows)), length)
        if spare := -length % LANES:
            mask_S = torch.zeros(length + spare, dtype=dtype)
            mask_S[length:] = -torch.inf
            run = replace(run, mask=mask_S.expand(1, 1, length, -1))
        runs.append(run)
        start += run.count * length
    return runs


def _round_up(rows: int) -> int:
    """`rows` rounded up, so that a row's bits do not depend on their number: a product of fewer than 4 rows per thread has other bits."""
    return max(-(-rows // PAD) * PAD, PAD * torch.get_num_threads())


def _blocks(rows: int, most: int) -> list[int]:
    """Bounds of the fewest blocks of at most about `most` of `rows` (a multiple of PAD), all of similar size and multiples of PAD."""
    count = -(-rows // most)
    return [rows // PAD * number // count * PAD for number in range(count + 1)]
