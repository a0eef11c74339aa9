"""Gradient caching: the loss of a large batch with the memory of a small one.

Luyu Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (RepL4NLP 2021, arXiv:2101.06983): vectors of all
texts without a graph, the loss and its gradient with respect to the vectors, then each chunk again with a graph through
which the cached gradient flows. Exact: the second pass draws the same dropout as the first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tasks.core.models.bi_encoder import Encoder
from tasks.core.stage.draws import draw_seed
from tasks.core.tables.ids import Ints
from tasks.core.text.tokens import Tokens, cut_by_budget
from tasks.core.training.figures import Figures

Loss = Callable[..., tuple[torch.Tensor, Figures]]


@dataclass(frozen=True)
class Side:
    """One kind of text of a step: the tower that encodes it, and which rows of which tokens."""

    tower: Encoder
    tokens: Tokens
    rows: Ints


def cached_backward(
    sides: Sequence[Side], loss: Loss, batch_tokens: int, graph_tokens: int, device: torch.device, dtype: torch.dtype, key: tuple[int, ...]
) -> Figures:
    """Accumulate the gradients of `loss(*vectors)` in the towers; returns the loss's value and metrics.

    `loss` gets one float32 [N, D] per side. Chunks are cut from length-sorted texts so that none is larger than
    `batch_tokens`, padding included; dropout of a chunk is drawn from `key` and the chunk's number. The graphs of the last
    chunks, `graph_tokens` in all, are kept: those are encoded once instead of twice, and the result is the same.
    """
    inputs = [side.tower.transformer.get_input_embeddings() for side in sides] if device.type == "cpu" else []
    words = [each for each in inputs if isinstance(each, nn.Embedding)]
    chunks = [(s, side, rows) for s, side in enumerate(sides) for rows in cut_by_budget(_lengths(side), batch_tokens)]
    sizes = [len(rows) * int(_lengths(side)[rows].max()) for _, side, rows in chunks]
    kept = [sum(sizes[number:]) <= graph_tokens for number in range(len(chunks))]

    def forward(number: int) -> torch.Tensor:
        _, side, rows = chunks[number]
        torch.manual_seed(draw_seed(*key, number))
        ids_BL, mask_BL = side.tokens.padded(side.rows[rows])
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16), _sparse_gradients(words):
            vectors_BD: torch.Tensor = side.tower(ids_BL.to(device), mask_BL.to(device))
        return vectors_BD

    graphs: dict[int, torch.Tensor] = {}
    vectors = [torch.empty(len(side.rows), side.tower.width, device=device) for side in sides]
    for number, (s, _, rows) in enumerate(chunks):
        with torch.set_grad_enabled(kept[number]):
            encoded = forward(number)
        if kept[number]:
            graphs[number] = encoded
        vectors[s][torch.from_numpy(rows).to(device)] = encoded.detach()
    leaves = [v.requires_grad_() for v in vectors]
    value, metrics = loss(*leaves)
    torch.autograd.backward(value)
    for number, (s, _, rows) in reversed(list(enumerate(chunks))):  # the kept graphs first, to free them
        gradient = leaves[s].grad
        assert gradient is not None, "the loss does not depend on a side"
        encoded = graphs.pop(number) if kept[number] else forward(number)
        torch.autograd.backward(encoded, gradient[torch.from_numpy(rows).to(device)])
        for word_VH in (each.weight for each in words):  # dense from the first chunk on, so that later ones are added in place
            if word_VH.grad is not None and word_VH.grad.is_sparse:
                word_VH.grad = word_VH.grad.to_dense()
    return {"loss": value.detach(), **metrics}


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
