"""One optimizer step of a cross-encoder: a softmax over each query's group."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tasks.core.models.cross_encoder import CrossEncoder
from tasks.core.stage.devices import moved
from tasks.core.stage.draws import draw_seed
from tasks.core.text.mapped import Texts
from tasks.core.training.figures import Figures
from tasks.reranker.groups import Groups, draw_groups
from tasks.reranker.params import Reranker

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


def parts_of(drawn: int, most: int, least: int) -> list[tuple[int, int]]:
    """Where parts of `drawn` groups begin and end: of `most`, or, with `least`, of about as many each, for there to be so many parts."""
    if not least:
        return [(start, min(start + most, drawn)) for start in range(0, drawn, most)]
    count = min(drawn, max(least, -(-drawn // most)))
    return list(pairwise(drawn * number // count for number in range(count + 1)))


def make_step(
    encoder: CrossEncoder,
    queries: list[str],
    texts: Texts,
    groups: Groups,
    params: Reranker,
    dtype: torch.dtype,
    gang: "Gang | None" = None,
) -> Callable[[int], Figures]:
    """The function that leaves the gradients of step n in the model; as many groups at once as batch_tokens allows.

    In a `gang`, a rank computes its share of the same parts, and leaves its share of the gradients. On GPUs there is a part for each.
    """
    width = 1 + params.hard_negatives
    at_once = max(1, encoder.batch_tokens // (width * encoder.max_length))

    def backward(step: int) -> Figures:
        drawn = draw_groups(groups, params, step)
        device = encoder.device
        total, first = (torch.zeros((), dtype=dtype, device=device) for dtype in (torch.float64, torch.int64))
        parts = parts_of(len(drawn), at_once, 0 if gang is None or device.type == "cpu" else gang.size)
        own = range(len(parts)) if gang is None else gang.dealt([end - start for start, end in parts])[gang.rank]
        for start, end in (parts[number] for number in own):
            part = drawn[start:end]
            pairs = [(queries[query], texts[document]) for query, documents in part for document in documents]
            torch.manual_seed(draw_seed(params.seed, 3, step, start))
            tensors = encoder.tokenizer(
                *map(list, zip(*pairs, strict=True)), truncation=True, max_length=encoder.max_length, padding=True, return_tensors="pt"
            )
            tensors = {name: moved(tensor, device) for name, tensor in tensors.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits_BG = encoder.logits(tensors).float().view(len(part), width)
            target_B = torch.zeros(len(part), dtype=torch.int64, device=device)
            loss = F.cross_entropy(logits_BG, target_B, reduction="sum") / len(drawn)
            torch.autograd.backward(loss)
            total = total + loss.detach()
            first = first + (logits_BG.argmax(1) == 0).sum()
        if gang is not None:
            total, first = gang.total({"loss": total, "first": first}).values()
        return {"loss": total, "accuracy": first.double() / len(drawn)}

    return backward
