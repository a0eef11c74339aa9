"""One optimizer step of a cross-encoder: a softmax over each query's group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from tasks.core.machine.devices import to_device
from tasks.core.models.cross_encoder import CrossEncoder
from tasks.core.stage.draws import DROPOUT, draw_seed
from tasks.core.text.mapped import Texts
from tasks.core.training.figures import Figures
from tasks.core.training.loop import Steps
from tasks.reranker.groups import Group, Groups, draw_groups
from tasks.reranker.params import Reranker

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


@dataclass(frozen=True)
class Drawn:
    """The number of a step's groups, and the parts that this rank computes, as (first group, tokenized pairs)."""

    groups: int
    parts: list[tuple[int, Mapping[str, torch.Tensor]]]


def parts_of(drawn: int, most: int, least: int) -> list[tuple[int, int]]:
    """Divide `drawn` groups into parts of at most `most`, as (begin, end). With `least` > 0: at least `least` parts of about equal size."""
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
) -> Steps[Drawn]:
    """Make the steps of a training, which leave their gradients in the model. A part has as many groups as batch_tokens allows.

    In a `gang`, each rank computes its share of the same parts, and leaves its share of the gradients. On GPUs, each rank gets a part.
    """
    width = 1 + params.hard_negatives
    at_once = max(1, encoder.batch_tokens // (width * encoder.max_length))

    device = encoder.device

    def tokens_of(part: Sequence[Group]) -> Mapping[str, torch.Tensor]:
        pairs = [(queries[query], texts[document]) for query, documents in part for document in documents]
        tensors: Mapping[str, torch.Tensor] = encoder.tokenizer(
            *map(list, zip(*pairs, strict=True)), truncation=True, max_length=encoder.max_length, padding=True, return_tensors="pt"
        )
        return tensors

    def draw(step: int) -> Drawn:
        drawn = draw_groups(groups, params, step)
        parts = parts_of(len(drawn), at_once, 0 if gang is None or device.type == "cpu" else gang.size)
        own = range(len(parts)) if gang is None else gang.deal([end - start for start, end in parts])[gang.rank]
        return Drawn(len(drawn), [(parts[number][0], tokens_of(drawn[slice(*parts[number])])) for number in own])

    def backward(step: int, drawn: Drawn) -> Figures:
        total, correct = (torch.zeros((), dtype=dtype, device=device) for dtype in (torch.float64, torch.int64))
        for start, part in drawn.parts:
            torch.manual_seed(draw_seed(params.seed, DROPOUT, step, start))
            tensors = {name: to_device(tensor, device) for name, tensor in part.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits_BG = encoder.logits(tensors).float().view(-1, width)
            target_B = torch.zeros(len(logits_BG), dtype=torch.int64, device=device)
            loss = F.cross_entropy(logits_BG, target_B, reduction="sum") / drawn.groups
            torch.autograd.backward(loss)
            total = total + loss.detach()
            correct = correct + (logits_BG.argmax(1) == 0).sum()
        if gang is not None:
            total, correct = gang.sum_figures({"loss": total, "correct": correct}).values()
        return {"loss": total, "accuracy": correct.double() / drawn.groups}

    return Steps(draw, backward)
