"""Loss and gradient norms by source of negatives (ANCE, section 3 and Fig. 4): how much a kind of negative still teaches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens

LAYER = re.compile(r"\.(\d+)\.")  # the first number in a name: encoder.layer.3., layers.3., h.3. (GPT-2), block.3.layer.1. (T5)
EMBEDDINGS = re.compile(r"embed|\.(shared|wte|wpe)\.")  # shared: T5; wte, wpe: GPT-2
TRIES = 16  # random documents to draw, for one that is not relevant
PARTS = ("bottom", "middle", "top")  # thirds of the layers


def layer_count(names: Iterable[str]) -> int:
    """The number of layers of a transformer, from the names of its parameters; at least 1."""
    return 1 + max((int(number[1]) for name in names if (number := LAYER.search(name))), default=0)


def part_of(name: str, layers: int) -> str:
    """The part of the transformer that a parameter belongs to: embeddings, a third of the layers, or head."""
    layer = LAYER.search(name)
    if layer:
        return PARTS[int(layer[1]) * len(PARTS) // layers]
    return "embeddings" if EMBEDDINGS.search(name) else "head"


def triple_scores(towers: Towers, queries: Tokens, documents: Tokens, batch: tuple[Ints, Ints, Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of each query's positive, [B], and of its negative, [B]. A document scores as its best passage."""
    query, positive, negative = batch
    vectors_BD = _vectors(towers.query, queries, query)
    return _best(vectors_BD, towers.document, documents, positive), _best(vectors_BD, towers.document, documents, negative)


def _vectors(tower: Encoder, tokens: Tokens, rows: Ints) -> torch.Tensor:
    device = next(tower.parameters()).device
    ids_BL, mask_BL = tokens.padded(rows)
    vectors: torch.Tensor = tower(ids_BL.to(device), mask_BL.to(device), tokens.prompt)
    return vectors


def _best(vectors_BD: torch.Tensor, tower: Encoder, tokens: Tokens, documents: Ints) -> torch.Tensor:
    rows_BP = tokens.rows_of(documents)
    exists_BP = torch.from_numpy(rows_BP >= 0).to(vectors_BD.device)
    place_BP = (exists_BP.flatten().cumsum(0) - 1).clamp(min=0).view_as(exists_BP)
    vectors_RD = _vectors(tower, tokens, rows_BP[rows_BP >= 0])
    return torch.einsum("bd,bpd->bp", vectors_BD, vectors_RD[place_BP]).masked_fill(~exists_BP, -torch.inf).max(1).values


def gradient_norms(
    towers: Towers, queries: Tokens, documents: Tokens, batches: Sequence[tuple[Ints, Ints, Ints]], temperature: float
) -> dict[str, float]:
    """The loss, and the L2 norm of the gradient by part of the model; means over batches of (queries, positives, negatives), each [B].

    Loss: the two-way softmax of ANCE as released, log(1 + exp((s- - s+) / temperature)). Dropout is off.
    """
    modules = [towers.query] if towers.shared else [towers.query, towers.document]
    layers = layer_count(name for name, _ in towers.document.named_parameters())
    sums: dict[str, float] = {}
    for batch in batches:
        for module in modules:
            module.zero_grad(set_to_none=True)
        positive_B, negative_B = triple_scores(towers, queries, documents, batch)
        loss = F.softplus((negative_B - positive_B) / temperature).mean()
        torch.autograd.backward(loss)
        squares: dict[str, float] = {}
        for module in modules:
            for name, weight in module.named_parameters():
                if weight.grad is not None:
                    part = part_of(name, layers)
                    squares[part] = squares.get(part, 0.0) + float(weight.grad.double().square().sum())
        figures = {
            "loss": float(loss.detach()),
            "all": sum(squares.values()) ** 0.5,
            **{part: square**0.5 for part, square in squares.items()},
        }
        for figure, value in figures.items():
            sums[figure] = sums.get(figure, 0.0) + value / len(batches)
    return sums


def draw_batches(
    positives: Mapping[int, Ints],
    negatives: Mapping[int, Ints] | None,
    documents: int,
    *,
    batches: int,
    size: int,
    in_batch: bool,
    seed: int,
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Draw batches of queries with one positive and one negative each. Under one seed, every source gets the same queries and positives.

    `negatives` has lists of hard negatives by query. If it is None, a negative is a random document, or with `in_batch` the positive of
    the next query in the batch. If that is relevant to the query, another is drawn, or (in_batch) a later query's is taken. Queries for
    which no negative is found are left out.
    """
    draw = np.random.default_rng(seed)
    draw_negative = np.random.default_rng(seed + 1)
    query_ids = np.array(sorted(positives), dtype=np.int64)
    for _ in range(batches):
        query = draw.choice(query_ids, size=min(size, len(query_ids)), replace=False)
        positive = np.array([draw.choice(positives[int(q)]) for q in query], dtype=np.int64)
        chosen = []
        for place, q in enumerate(query.tolist()):
            if in_batch:
                candidates = [doc for doc in np.roll(positive, -place - 1).tolist() if doc not in positives[q]]
                chosen.append(candidates[0] if candidates else -1)
            elif negatives is None:
                random_docs = (doc for doc in draw_negative.integers(documents, size=TRIES).tolist() if doc not in positives[q])
                chosen.append(next(random_docs, -1))
            else:
                chosen.append(int(draw_negative.choice(negatives[q])) if len(negatives.get(q, ())) else -1)
        negative = np.array(chosen, dtype=np.int64)
        has_negative = negative >= 0
        if has_negative.any():
            yield query[has_negative], positive[has_negative], negative[has_negative]
