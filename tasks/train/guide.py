"""A guide: a frozen encoder that says which negatives of a batch are likely to be relevant.

GISTEmbed (Solatorio, arXiv:2402.16829), section 3: a candidate that the guide scores above the query's positive is not used as a negative.
There the guide is a larger model; here it is the encoder that the round starts from, so the user need not name another model.
"""

from collections.abc import Callable
from dataclasses import replace

from tasks.train.batches import Batch, Floats
from tasks.train.frozen import Frozen

Guide = Callable[[Batch], Batch]


def mask_by_guide(batch: Batch, scores_BU: Floats, margin: float) -> Batch:
    """Mask the negatives that the guide scores above the query's positive - `margin`. `scores_BU`: its scores of the batch's documents."""
    scores_BS = scores_BU[:, batch.slots]
    likely_BS = scores_BS > scores_BS.diagonal()[:, None] - margin
    return replace(batch, positive=batch.positive | likely_BS)


def make_guide(guide: Frozen, margin: float) -> Guide:
    """Make the function that masks a batch by `guide`. It encodes the batch's texts once more, without gradients."""
    return lambda batch: mask_by_guide(batch, guide.scores(batch.queries, batch.documents), margin)
