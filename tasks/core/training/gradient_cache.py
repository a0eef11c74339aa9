"""Gradient caching: the loss of a large batch with the memory of a small one.

Luyu Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (RepL4NLP 2021, arXiv:2101.06983): vectors of all
texts without a graph, the loss and its gradient with respect to the vectors, then each chunk again with a graph through
which the cached gradient flows. Exact: the second pass draws the same dropout as the first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from tasks.core.models.bi_encoder import Encoder
from tasks.core.stage.devices import moved
from tasks.core.stage.draws import draw_seed
from tasks.core.tables.ids import Ints
from tasks.core.text.tokens import Tokens, cut_by_budget
from tasks.core.training.figures import Figures
from tasks.core.training.unpadded import Unpadded

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

Loss = Callable[..., tuple[torch.Tensor, Figures]]


@dataclass(frozen=True)
class Side:
    """One kind of text of a step: the tower that encodes it, and which rows of which tokens."""

    tower: Encoder
    tokens: Tokens
    rows: Ints


def cached_backward(
    sides: Sequence[Side],
    loss: Loss,
    batch_tokens: int,
    graph_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    key: tuple[int, ...],
    gang: "Gang | None" = None,
) -> Figures:
    """Accumulate the gradients of `loss(*vectors)` in the towers; returns the loss's value and metrics.

    `loss` gets one float32 [N, D] per side. Chunks are cut from length-sorted texts so that none is larger than
    `batch_tokens`, padding included; dropout of a chunk is drawn from `key` and the chunk's number. The graphs of the last
    chunks, `graph_tokens` in all, are kept: those are encoded once instead of twice, and the result is the same.

    In a `gang`, each rank encodes its share of the same chunks, all ranks compute the loss of all vectors, and what each leaves is its
    share of the gradients, whose sum is the whole; those of the loss's own weights are the first rank's.
    """
    inputs = [side.tower.transformer.get_input_embeddings() for side in sides] if device.type == "cpu" else []
    words = [each for each in inputs if isinstance(each, nn.Embedding)]
    chunks = [(s, side, rows) for s, side in enumerate(sides) for rows in cut_by_budget(_lengths(side), batch_tokens)]
    sizes = [len(rows) * int(_lengths(side)[rows].max()) for _, side, rows in chunks]
    work = [list(range(len(chunks)))] if gang is None else gang.dealt(sizes)
    own = work[0 if gang is None else gang.rank]
    unpadded = {tower: Unpadded.of(tower, device, dtype) for tower in {side.tower for side in sides}}
    kept = {number for place, number in enumerate(own) if sum(sizes[later] for later in own[place:]) <= graph_tokens}

    def forward(number: int) -> torch.Tensor:
        _, side, rows = chunks[number]
        torch.manual_seed(draw_seed(*key, number))
        if (fast := unpadded[side.tower]) is not None:
            return fast.vectors(side.tokens, side.rows[rows])
        ids_BL, mask_BL = side.tokens.padded(side.rows[rows])
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16), _sparse_gradients(words):
            vectors_BD: torch.Tensor = side.tower(moved(ids_BL, device), moved(mask_BL, device), side.tokens.prompt)
        return vectors_BD

    graphs: dict[int, torch.Tensor] = {}
    vectors = [torch.empty(len(side.rows), side.tower.width, device=device) for side in sides]
    for number in own:
        s, _, rows = chunks[number]
        with torch.set_grad_enabled(number in kept):
            encoded = forward(number)
        if number in kept:
            graphs[number] = encoded
        vectors[s][moved(torch.from_numpy(rows), device)] = encoded.detach()
    if gang is not None:
        for s, vectors_ND in enumerate(vectors):
            gang.fill(vectors_ND, [[chunks[number][2] for number in numbers if chunks[number][0] == s] for numbers in work])
    leaves = [v.requires_grad_() for v in vectors]
    value, metrics = loss(*leaves)
    backward_to(leaves, value, gang)
    for number in reversed(own):  # the kept graphs first, to free them
        s, _, rows = chunks[number]
        gradient = leaves[s].grad
        assert gradient is not None, "the loss does not depend on a side"
        encoded = graphs.pop(number) if number in kept else forward(number)
        torch.autograd.backward(encoded, gradient[moved(torch.from_numpy(rows), device)])
        for word_VH in (each.weight for each in words):  # dense from the first chunk on, so that later ones are added in place
            if word_VH.grad is not None and word_VH.grad.is_sparse:
                word_VH.grad = word_VH.grad.to_dense()
        if (fast := unpadded[chunks[number][1].tower]) is not None:
            fast.give_back()
    return {"loss": value.detach(), **metrics}


def backward_to(leaves: Sequence[torch.Tensor], value: torch.Tensor, gang: "Gang | None") -> None:
    """Leave the gradients of `value` in `leaves` and in the weights that it depends on. In a gang, where every rank computes the same
    `value`, only the first leaves those of the weights: they must count once.
    """
    if gang is None or gang.first:
        torch.autograd.backward(value)
        return
    for leaf, gradient in zip(leaves, torch.autograd.grad(value, leaves, allow_unused=True), strict=True):
        leaf.grad = gradient


@contextmanager
def _sparse_gradients(words: Sequence[nn.Embedding]) -> Iterator[None]:
    """Embeddings used inside get sparse gradients: a chunk's dense one is as large as the vocabulary, 7 % of a bf16 step on a CPU."""
    before = [embedding.sparse for embedding in words]
    for embedding in words:
        embedding.sparse = True
    try:
        yield
    finally:
        for embedding, sparse in zip(words, before, strict=True):
            embedding.sparse = sparse


def _lengths(side: Side) -> Ints:
    lengths: Ints = side.tokens.offsets[side.rows + 1] - side.tokens.offsets[side.rows]
    return lengths
