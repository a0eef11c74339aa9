"""Masking of masked language modeling (BERT, Devlin et al., arXiv:1810.04805, section 3.1)."""

import numpy as np

from tasks.core.tables.ids import Ints
from tasks.pretrain.words import Bools, Vocabulary

MASKED, RANDOM = 0.8, 0.1  # of the tokens to predict; the rest stay unchanged


def mask_tokens(ids: Ints, vocabulary: Vocabulary, share: float, rng: np.random.Generator) -> tuple[Ints, Bools]:
    """Mask a row of tokens: the row as the model sees it, and a mask of the positions to predict, both [L].

    Every non-special token is chosen with probability `share`, independently. A chosen token becomes [MASK] with
    probability 0.8 and a uniformly random token of the vocabulary with 0.1; else it stays.
    """
    chance, kind = rng.random((2, len(ids)))
    drawn = vocabulary.ids[rng.integers(0, len(vocabulary), size=len(ids))]
    hidden: Bools = (chance < share) & ~vocabulary.special[ids]
    seen = np.where(hidden & (kind < MASKED), vocabulary.mask, ids)
    seen = np.where(hidden & (kind >= MASKED) & (kind < MASKED + RANDOM), drawn, seen)
    return seen, hidden
