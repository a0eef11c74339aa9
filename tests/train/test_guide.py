"""A guide takes likely positives from a batch's negatives."""

import numpy as np
import pytest

from tasks.train.batches import Batch
from tasks.train.guide import mask_by_guide
from tasks.train.params import Round


@pytest.mark.parametrize("margin", [0.0, 0.3, -0.3])
def test_masks_what_the_guide_scores_above_the_positive(margin: float) -> None:
    """Three queries, one hard negative each, seven distinct documents at most."""
    rng = np.random.default_rng(4)
    documents, slots = np.unique([9, 4, 7, 1, 4, 3], return_inverse=True)  # the second hard negative is another query's positive
    positive = np.zeros((3, 6), dtype=bool)
    positive[[0, 1, 2, 1], [0, 1, 2, 4]] = True
    batch = Batch(np.arange(3), documents, slots, positive, np.eye(3, 6, 3, dtype=bool), np.full((3, 2), np.nan, dtype=np.float32))
    scores = rng.random((3, len(documents)), dtype=np.float32)
    mask = mask_by_guide(batch, scores, margin).positive
    masked = 0
    for query in range(3):
        target = scores[query, slots[query]]
        for slot in range(6):
            likely = bool(scores[query, slots[slot]] > target - margin)
            assert mask[query, slot] == (positive[query, slot] or likely)
            masked += likely and not positive[query, slot]
    assert 0 < masked < 12
    assert (batch.positive == positive).all(), "the batch itself is as it was"


def test_a_margin_without_a_guide_is_refused() -> None:
    with pytest.raises(ValueError, match="guide_margin needs a guide"):
        Round.model_validate({"init": "base", "negatives": "bm25", "guide_margin": 0.1})
