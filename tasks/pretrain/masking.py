"""What masked language modelling hides (Devlin et al., BERT, section 3.1)."""

import numpy as np

from tasks.core.tables.ids import Ints
from tasks.pretrain.words import Bools, Vocabulary

MASKED, RANDOM = 0.8, 0.1  # of the tokens to predict; the rest stays as it is


def hide(ids: Ints, vocabulary: Vocabulary, share: float, rng: np.random.Generator) -> tuple[Ints, Bools]:
    """A row of tokens as the model sees it, and which places it has to predict, both [L].

    Every token but special ones is to be predicted with probability `share`, independently: then it is [MASK] with
    probability 0.8, a uniformly random token of the vocabulary with 0.1, itself with 0.1.
    """
    chance, kind = rng.random((2, len(ids)))
    drawn = rng.integers(0, len(vocabulary), size=len(ids))
    hidden: Bools = (chance < share) & ~vocabulary.special[ids]
    seen = np.where(hidden & (kind < MASKED), vocabulary.mask, ids)
    seen = np.where(hidden & (kind >= MASKED) & (kind < MASKED + RANDOM), drawn, seen)
    return seen, hidden
