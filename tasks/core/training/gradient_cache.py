"""Gradient caching: the loss of a large batch with the memory of a small one.

Luyu Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (RepL4NLP 2021, arXiv:2101.06983): vectors of all
texts without a graph, the loss and its gradient with respect to the vectors, then each chunk again with a graph through
which the cached gradient flows. Exact: the second pass draws the same dropout as the first.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from tasks.core.machine.devices import restore_order, to_device, to_tensor
from tasks.core.models.bi_encoder import Encoder
from tasks.core.stage.draws import draw_seed
from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tokens.folder import Tokens, cut_by_budget, cut_evenly
from tasks.core.training.compute import Compute
from tasks.core.training.figures import Figures
from tasks.core.training.unpadded import Unpadded, unpadded_towers

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

Loss = Callable[..., tuple[torch.Tensor, Figures]]


@dataclass(frozen=True)
class Chunk:
    """Texts that one tower encodes together.

    `parts` has pairs of a side's number and positions in its `rows`; `size` is the number of tokens, including any padding.
    """

    tower: Encoder
    parts: tuple[tuple[int, Ints], ...]
    size: int


@dataclass(frozen=True)
class Side:
    """One kind of text of a step: the tower that encodes it, its tokens, and the rows of them that are used."""

    tower: Encoder
    tokens: Tokens
    rows: Ints


def cached_backward(
    sides: Sequence[Side],
    loss: Loss,
    batch_tokens: int,
    compute: Compute,
    key: tuple[int, ...],
    unpadded: Mapping[Encoder, Unpadded] | None = None,
) -> Figures:
    """Accumulate the gradients of `loss(*vectors)` in the towers; return the loss's value and metrics.

    `loss` gets one float32 [N, D] per side. No chunk (see `make_chunks`) is larger than `batch_tokens`, padding included. A chunk's
    dropout is drawn from `key` and the chunk's number. The graphs of the last chunks, up to `compute.graph_tokens` tokens in all, are
    kept: those chunks are encoded once instead of twice, with the same result.

    `unpadded`: the towers that compute without padding, if the caller has made them (`unpadded_towers`); they are refreshed here.

    In a `gang`, each rank encodes its share of the same chunks, and all ranks compute the loss of all vectors. Each leaves its share of the
    gradients; their sum is the whole. Only the first rank leaves gradients of the loss's own weights.
    """
    gang = compute.gang
    rank, ranks = (0, 1) if gang is None else (gang.rank, gang.size)
    if unpadded is None:
        unpadded = unpadded_towers([side.tower for side in sides], compute.device, compute.dtype)
    else:
        for tower in unpadded.values():
            tower.refresh()
    chunks = make_chunks(sides, unpadded.keys(), batch_tokens, ranks)
    passes = _Passes(sides, chunks, compute, key, unpadded)
    work = [list(range(len(chunks)))] if gang is None else gang.deal([chunk.size for chunk in chunks])
    own_numbers = work[rank]
    with_graph = last_ones(own_numbers, [chunk.size for chunk in chunks], compute.graph_tokens)
    graphs: dict[int, torch.Tensor] = {}
    vectors: list[list[torch.Tensor]] = [[torch.empty(0, side.tower.width, device=compute.device)] for side in sides]  # of our own chunks
    for number in own_numbers:
        with torch.set_grad_enabled(number in with_graph):
            encoded = passes.forward(number)
        if number in with_graph:
            graphs[number] = encoded
        parts = chunks[number].parts
        for (s, _), vectors_BD in zip(parts, torch.split(encoded.detach(), [len(rows) for _, rows in parts]), strict=True):
            vectors[s].append(vectors_BD)
    places = [[[rows for number in numbers for t, rows in chunks[number].parts if t == s] for numbers in work] for s in range(len(sides))]
    leaves = [
        gather_vectors(torch.cat(side_vectors), side_rows, gang).requires_grad_()
        for side_vectors, side_rows in zip(vectors, places, strict=True)
    ]
    value, metrics = loss(*leaves)
    backward_to(leaves, value, gang)
    gradients = [_parts_of(leaf.grad, side_rows[rank]) for leaf, side_rows in zip(leaves, places, strict=True)]
    for number in reversed(own_numbers):  # the kept graphs first, to free them
        gradient = torch.cat([gradients[s].pop() for s, _ in chunks[number].parts])
        passes.backward(number, graphs.pop(number) if number in with_graph else passes.forward(number), gradient)
    return {"loss": value.detach(), **metrics}


class _Passes:
    """The passes of a step's chunks through their towers. Each forward pass of a chunk draws the same dropout."""

    def __init__(
        self,
        sides: Sequence[Side],
        chunks: Sequence[Chunk],
        compute: Compute,
        key: tuple[int, ...],
        unpadded: Mapping[Encoder, Unpadded],
    ) -> None:
        self.sides, self.chunks, self.key, self.unpadded = sides, chunks, key, unpadded
        self.device, self.autocast = compute.device, compute.dtype == torch.bfloat16
        inputs = [side.tower.transformer.get_input_embeddings() for side in sides] if self.device.type == "cpu" else []
        self.embeddings = [module for module in inputs if isinstance(module, nn.Embedding)]

    def forward(self, number: int) -> torch.Tensor:
        """The vectors [B, D] of chunk `number`, one part after the other."""
        chunk = self.chunks[number]
        torch.manual_seed(draw_seed(*self.key, number))
        texts = [(self.sides[s].tokens, self.sides[s].rows[rows]) for s, rows in chunk.parts]
        if chunk.tower in self.unpadded:
            return self.unpadded[chunk.tower].vectors(texts)
        ((tokens, rows),) = texts
        ids_BL, mask_BL = tokens.padded(rows)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast), _sparse_gradients(self.embeddings):
            vectors_BD: torch.Tensor = chunk.tower(to_device(ids_BL, self.device), to_device(mask_BL, self.device), tokens.prompt)
        return vectors_BD

    def backward(self, number: int, encoded_BD: torch.Tensor, gradient_BD: torch.Tensor) -> None:
        """Accumulate the gradients of chunk `number` in its tower."""
        torch.autograd.backward(encoded_BD, gradient_BD)
        for embedding in self.embeddings:  # dense from the first chunk on, so that later ones are added in place
            if embedding.weight.grad is not None and embedding.weight.grad.is_sparse:
                embedding.weight.grad = embedding.weight.grad.to_dense()
        tower = self.chunks[number].tower
        if tower in self.unpadded:
            self.unpadded[tower].give_back()


def last_ones(numbers: Sequence[int], sizes: Sequence[int], tokens: int) -> set[int]:
    """The last of the chunks `numbers` that have at most `tokens` in all; `sizes`: the tokens of all chunks."""
    return {number for place, number in enumerate(numbers) if sum(sizes[later] for later in numbers[place:]) <= tokens}


def make_chunks(sides: Sequence[Side], unpadded: Collection[Encoder], batch_tokens: int, ranks: int) -> list[Chunk]:
    """Divide the texts of all sides into chunks, each of one side and of texts of similar length.

    Towers in `unpadded` compute without padding. Each of them has chunks of all its sides, so that there are few; they are of about the
    same size, and enough for each of `ranks` to have one.
    """
    chunks: list[Chunk] = []
    for s, side in enumerate(sides):
        if side.tower not in unpadded:
            chunks += [
                Chunk(side.tower, ((s, rows),), len(rows) * int(_lengths(side)[rows].max()))
                for rows in cut_by_budget(_lengths(side), batch_tokens)
            ]
        elif all(side.tower is not earlier.tower for earlier in sides[:s]):
            numbers = [number for number, other in enumerate(sides) if other.tower is side.tower]
            lengths = [_lengths(sides[number]) for number in numbers]
            sizes, lengths_N = np.array([*map(len, lengths)]), np.concatenate(lengths)
            side_N, row_N = np.repeat(numbers, sizes), concat_ranges(0, sizes)
            for members in cut_evenly(lengths_N, batch_tokens, ranks):
                parts = ((number, row_N[members[side_N[members] == number]]) for number in numbers)
                chunks.append(Chunk(side.tower, tuple(part for part in parts if len(part[1])), int(lengths_N[members].sum())))
    return chunks


def _parts_of(gradient_ND: torch.Tensor | None, rows: Sequence[Ints]) -> list[torch.Tensor]:
    """The gradients at `rows`, one tensor per part."""
    assert gradient_ND is not None, "the loss does not depend on a side"
    order = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    return list(torch.split(gradient_ND[to_tensor(order, gradient_ND.device)], [*map(len, rows)]))


def gather_vectors(own_MD: torch.Tensor, places: Sequence[Sequence[Ints]], gang: "Gang | None") -> torch.Tensor:
    """The vectors [N, D] of all texts, in order. Without a gang, all are ours.

    `own_MD` are this rank's; those of rank r go to places[r] (in parts).
    """
    return restore_order(own_MD, places[0]) if gang is None else gang.gather_vectors(own_MD, places)


def backward_to(leaves: Sequence[torch.Tensor], value: torch.Tensor, gang: "Gang | None") -> None:
    """Leave the gradients of `value` in `leaves` and in the weights that it depends on.

    In a gang, every rank computes the same `value`; only the first leaves gradients of weights, because they must count once.
    """
    if gang is None or gang.is_first:
        torch.autograd.backward(value)
        return
    for leaf, gradient in zip(leaves, torch.autograd.grad(value, leaves, allow_unused=True), strict=True):
        leaf.grad = gradient


@contextmanager
def _sparse_gradients(embeddings: Sequence[nn.Embedding]) -> Iterator[None]:
    """Give embeddings sparse gradients in this context: a chunk's dense one is as large as the vocabulary, 7% of a bf16 step on a CPU."""
    settings = [embedding.sparse for embedding in embeddings]
    for embedding in embeddings:
        embedding.sparse = True
    try:
        yield
    finally:
        for embedding, sparse in zip(embeddings, settings, strict=True):
            embedding.sparse = sparse


def _lengths(side: Side) -> Ints:
    lengths: Ints = side.tokens.offsets[side.rows + 1] - side.tokens.offsets[side.rows]
    return lengths
