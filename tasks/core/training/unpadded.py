"""A tower's training pass over texts without padding, on a GPU: the computation of `Encoder.forward` under autocast, in fewer operations.

In a training on texts the GPU waits: operations are launched more slowly than it computes them. So all texts of a chunk are rows of one
matrix, attention is flash attention over texts of different lengths (Dao, arXiv:2307.08691) with dropout, and weights are cast once per
step, not at each use: products use copies of the weights in bfloat16, whose gradients are added to those of the weights themselves. As
under autocast, sums of residuals, layer norms, embeddings, and pooling are in float32.

Shapes: B rows, T tokens of a chunk, H hidden width, D vector width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tasks.core.machine.devices import best_batch_tokens, has_flash_attention, most_tokens, to_device, to_tensor
from tasks.core.models.bi_encoder import Encoder
from tasks.core.models.hidden_states.first_tokens import built_like_bert
from tasks.core.models.hidden_states.unpadded_rows import (
    first_places,
    first_position,
    ids_and_positions,
    positions,
    round_up,
    with_filler_rows,
)
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

WIDEST = 192  # width of an attention head: torch refuses gradients of wider ones on some GPUs
MOST_TOKENS = 131072  # of a batch
Pair = tuple[torch.Tensor, torch.Tensor]  # weight and bias


@dataclass(frozen=True)
class Copies:
    """Copies of the weights of one layer's matrix products, in their dtype; query, key, and value are one product."""

    qkv: Pair
    mixed: Pair
    inner: Pair
    outer: Pair

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for pair in vars(self).values() for tensor in pair]


class Unpadded:
    """A tower in training, and copies of its layers' weights, made at its creation and at each `refresh`."""

    def __init__(self, tower: Encoder, dtype: torch.dtype) -> None:
        first = first_position(tower.transformer.config)
        assert first is not None, "see `can_be_unpadded`"
        self.tower, self.dtype, self.first = tower, dtype, first
        self.layers = [(layer, _copies(layer, dtype)) for layer in tower.transformer.encoder.layer]
        pairs = [pair for layer, copies in self.layers for pair in zip(_weights(layer), copies.tensors(), strict=True)]
        self.weights = [weight for weights, _ in pairs for weight in weights]
        self.parts = [part for weights, copy in pairs for part in copy.detach().chunk(len(weights))]
        self.refresh()

    def refresh(self) -> None:
        """Copy the weights as they are now."""
        with torch.no_grad():
            torch._foreach_copy_(self.parts, self.weights)

    @classmethod
    def of(cls, tower: Encoder, device: torch.device, dtype: torch.dtype) -> "Unpadded | None":
        """`tower` as an `Unpadded`; None where `can_be_unpadded` says no."""
        return cls(tower, dtype) if can_be_unpadded(tower, device, dtype) else None

    def vectors(self, texts: Sequence[tuple[Tokens, Ints]]) -> torch.Tensor:
        """Encode rows of tokens as vectors, float32 [B, D], with a graph where gradients are enabled.

        Dropout is drawn by the device's generator.
        """
        lengths = [tokens.offsets[rows + 1] - tokens.offsets[rows] for tokens, rows in texts]
        parts = [ids_and_positions(tokens, rows, each_B, self.first) for (tokens, rows), each_B in zip(texts, lengths, strict=True)]
        ids_T, positions_T = map(torch.cat, zip(*parts, strict=True))
        first_only = self.tower.shape.pooling == "cls"
        hidden_TH, ends_E = self.hidden((ids_T, positions_T), np.concatenate(lengths), first_only)
        if first_only:
            return self.tower.finish(hidden_TH)
        # unsafe: without reading the lengths back to check them
        return self.tower.finish(torch.segment_reduce(hidden_TH, "mean", lengths=ends_E.diff(), unsafe=True))

    def padded(self, rows: list[Ints]) -> torch.Tensor:
        """The last hidden states of rows of token ids, float32 [B, L, H], with zeros after a row's last token."""
        lengths_B = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids_T = np.concatenate(rows)
        positions_T = positions(ids_T, lengths_B, self.first)
        hidden_TH, _ = self.hidden((torch.from_numpy(ids_T), torch.from_numpy(positions_T)), lengths_B)
        mask_BL = np.arange(lengths_B.max()) < lengths_B[:, None]
        source_N = np.where(mask_BL.ravel(), mask_BL.cumsum() - 1, len(hidden_TH))
        indices = (to_tensor(places, hidden_TH.device) for places in (source_N, np.flatnonzero(mask_BL)))
        padded_NH: torch.Tensor = _Padded.apply(hidden_TH, *indices)  # type: ignore[no-untyped-call]
        return padded_NH.view(*mask_BL.shape, -1)

    def hidden(
        self, placed_T: tuple[torch.Tensor, torch.Tensor], lengths_B: Ints, first_only: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last hidden states, float32 [T, H], of token and position ids; with `first_only`, those of each row's first token, [B, H].

        Also returns where the rows begin and the last one ends, int64 [B + 1].
        """
        transformer, device = self.tower.transformer, next(self.tower.parameters()).device
        config = transformer.config
        heads, training = config.num_attention_heads, transformer.training
        drop, attention_drop = (share * training for share in (config.hidden_dropout_prob, config.attention_probs_dropout_prob))
        total, longest = int(lengths_B.sum()), int(lengths_B.max())
        size = round_up(total)
        placed_T = F.pad(placed_T[0], (0, size - total)), F.pad(placed_T[1], (0, size - total), value=self.first)
        lengths_E = with_filler_rows(lengths_B, size)  # with rows that nothing reads
        ends_E = to_tensor(np.cumsum([0, *lengths_E]), device)
        ends, rows = ends_E.int(), len(lengths_E)
        ids_1T, positions_1T = (to_device(values_T, device)[None] for values_T in placed_T)
        x_TH = _embedded(transformer.embeddings, ids_1T, positions_1T)[0]
        for layer, copies in self.layers:
            low_TH, query_ends, longest_query = x_TH.to(self.dtype), ends, longest
            if first_only and layer is self.layers[-1][0]:
                x_TH = x_TH[to_tensor(first_places(lengths_E, round_up(rows)), device)]
                width, (weight_KH, bias_K) = x_TH.shape[1], copies.qkv
                q = F.linear(x_TH.to(self.dtype), weight_KH[:width], bias_K[:width])[:rows].view(rows, heads, -1)
                k, v = F.linear(low_TH, weight_KH[width:], bias_K[width:]).view(len(low_TH), 2, heads, -1).unbind(1)
                query_ends, longest_query = torch.arange(rows + 1, dtype=torch.int32, device=device), 1
            else:
                q, k, v = F.linear(low_TH, *copies.qkv).view(len(low_TH), 3, heads, -1).unbind(1)
            context_TAW = torch.ops.aten._flash_attention_forward(
                q, k, v, query_ends, ends, longest_query, longest, attention_drop, False, False
            )[0]
            if spare := len(x_TH) - len(context_TAW):  # without any, padding would be a copy
                context_TAW = F.pad(context_TAW, (0, 0, 0, 0, 0, spare))
            x_TH = layer.attention.output.LayerNorm(F.dropout(F.linear(context_TAW.flatten(1), *copies.mixed), drop) + x_TH)
            inner_TI = layer.intermediate.intermediate_act_fn(F.linear(x_TH.to(self.dtype), *copies.inner))
            x_TH = layer.output.LayerNorm(F.dropout(F.linear(inner_TI, *copies.outer), drop) + x_TH)
        return x_TH[: len(lengths_B) if first_only else total], ends_E[: len(lengths_B) + 1]

    def give_back(self) -> None:
        """Add the copies' gradients to those of the weights, then clear them."""
        pairs = [
            (weight, part)
            for layer, copies in self.layers
            for weights, copy in zip(_weights(layer), copies.tensors(), strict=True)
            if copy.grad is not None
            for weight, part in zip(weights, copy.grad.chunk(len(weights)), strict=True)
        ]
        gradients = [torch.empty_like(weight) for weight, _ in pairs]
        if pairs:
            torch._foreach_copy_(gradients, [part for _, part in pairs])
        additions = [(weight.grad, gradient) for (weight, _), gradient in zip(pairs, gradients, strict=True) if weight.grad is not None]
        for (weight, _), gradient in zip(pairs, gradients, strict=True):
            weight.grad = gradient if weight.grad is None else weight.grad
        if additions:
            torch._foreach_add_(*map(list, zip(*additions, strict=True)))
        for _, copies in self.layers:
            for copy in copies.tensors():
                copy.grad = None


def unpadded_towers(towers: Sequence[Encoder], device: torch.device, dtype: torch.dtype) -> dict[Encoder, Unpadded]:
    """Those of `towers` that can compute without padding, each with its `Unpadded`."""
    candidates = ((tower, Unpadded.of(tower, device, dtype)) for tower in dict.fromkeys(towers))
    return {tower: unpadded for tower, unpadded in candidates if unpadded is not None}


class _Padded(torch.autograd.Function):
    """Put the rows of `hidden_TH` at places [T] of N, and zeros at the others. `source_N`: the row for each place, T for zeros.

    Under deterministic algorithms, torch's own indexed writes, forward and backward, wait for the GPU to read the index back.
    """

    @staticmethod
    def forward(context: Any, hidden_TH: torch.Tensor, source_N: torch.Tensor, place_T: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(place_T)
        return torch.cat([hidden_TH, hidden_TH.new_zeros(1, hidden_TH.shape[1])])[source_N]

    @staticmethod
    def backward(context: Any, gradient_NH: torch.Tensor) -> Any:
        (place_T,) = context.saved_tensors
        return gradient_NH[place_T], None, None


def best_training_tokens(towers: Sequence[Encoder], device: torch.device, dtype: torch.dtype, gang: "Gang | None" = None) -> int:
    """The number of tokens per training batch; without padding, few large batches are faster. In a `gang`, all use the first rank's."""
    tokens = best_batch_tokens(device, dtype, gradients=True)
    if device.type == "cuda":
        all_unpadded = all(can_be_unpadded(tower, device, dtype) for tower in towers)
        tokens = min(MOST_TOKENS if all_unpadded else tokens, *(most_tokens(device, tower.transformer.config) for tower in towers))
    return tokens if gang is None else gang.broadcast(tokens)


def can_be_unpadded(tower: Encoder, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `device` has flash attention for training in `dtype`, and `tower` is built like BERT, of plain layers, all trained."""
    if dtype != torch.bfloat16 or not has_flash_attention(device):
        return False
    transformer, shape = tower.transformer, tower.shape
    config = transformer.config
    if not built_like_bert(transformer):
        return False
    if shape.pooling not in ("cls", "mean") or not shape.pools_prompt:
        return False
    width = config.hidden_size // config.num_attention_heads
    modules = [module for layer in transformer.encoder.layer for module in layer.modules() if next(module.children(), None) is None]
    trained = [module for module in modules if next(module.parameters(), None) is not None]
    plain = all(type(module) in (nn.Linear, nn.LayerNorm) for module in trained)
    return plain and width % 8 == 0 and width <= WIDEST and all(weight.requires_grad for weight in transformer.encoder.parameters())


def _weights(layer: Any) -> list[list[torch.Tensor]]:
    """Weights and biases in the order of `Copies.tensors`, grouped by the copy that holds them."""
    attention = layer.attention.self
    modules = [
        [attention.query, attention.key, attention.value],
        [layer.attention.output.dense],
        [layer.intermediate.dense],
        [layer.output.dense],
    ]
    return [[getattr(module, name) for module in group] for group in modules for name in ("weight", "bias")]


def _copies(layer: Any, dtype: torch.dtype) -> Copies:
    """Uninitialized tensors for copies of a layer's weights."""
    shapes = [(sum(map(len, group)), *group[0].shape[1:]) for group in _weights(layer)]
    device = next(layer.parameters()).device
    pairs = iter(torch.empty(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes)
    return Copies(*zip(pairs, pairs, strict=True))


def _embedded(embeddings: Any, ids_1T: torch.Tensor, positions_1T: torch.Tensor) -> torch.Tensor:
    """BERT's embeddings of texts of one type, [1, T, H].

    The type's vector is added, not looked up for each token: the backward pass of such a lookup sorts all tokens, and sums the gradients of
    that one vector one by one.
    """
    type_H = embeddings.token_type_embeddings.weight[0]
    summed_1TH = embeddings.word_embeddings(ids_1T) + type_H + embeddings.position_embeddings(positions_1T)
    embedded_1TH: torch.Tensor = embeddings.dropout(embeddings.LayerNorm(summed_1TH))
    return embedded_1TH
