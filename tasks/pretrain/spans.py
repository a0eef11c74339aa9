"""Multi-granularity span sampling (COSTA, arXiv:2204.10641, section 3.2, Eq. 1-3).

A text is a row [CLS] x_1 ... x_n [SEP]; a span is [start, end) in positions of the row, 1 <= start < end <= n + 1.
T spans for each of G granularities make S = G T spans per text.
"""

import numpy as np

from tasks.core.tables.ids import Ints
from tasks.pretrain.params import Pretrain
from tasks.pretrain.words import Vocabulary, whole_words


def draw_lengths(least: int, most: int, n: int, beta: tuple[float, float], count: int, rng: np.random.Generator) -> Ints:
    """Draw span lengths in tokens, [count]. Eq. 1: floor(p (most - least) + least), p ~ Beta(alpha, beta): < `most` unless most = least.

    A text of n < `most` tokens clips `most` to n; a text of n <= `least` tokens is one span (the paper does not say).
    """
    most, least = min(most, n), min(least, n)
    lengths: Ints = np.floor(rng.beta(*beta, size=count) * (most - least) + least).astype(np.int64)
    return lengths


def draw_starts(lengths: Ints, n: int, rng: np.random.Generator) -> Ints:
    """Draw the start of each span. Eq. 2: uniform over 1 ... n - length + 1, every position where the span fits.

    Eq. 2 as written, U(1, n - length), excludes the last position: a text's last token would be in no span, and a text
    that is as long as its span would have no span.
    """
    starts: Ints = 1 + rng.integers(0, n - lengths + 1)
    return starts


def draw_spans(ids: Ints, vocabulary: Vocabulary, params: Pretrain, rng: np.random.Generator) -> Ints:
    """Draw the spans of one row of tokens, [S, 2], granularity by granularity. Eq. 3: end = start + length.

    Words are whole (all their pieces) and not stopwords, drawn uniformly from their occurrences, with replacement. In a
    text without words, single tokens are drawn instead.
    """
    n = len(ids) - 2
    spans = []
    for granularity in params.granularities:
        if granularity == "word":
            words = whole_words(ids, vocabulary)
            if not len(words):
                words = np.stack([np.arange(1, n + 1), np.arange(2, n + 2)], axis=1)
            spans.append(words[rng.integers(0, len(words), size=params.spans)])
        else:
            least, most = getattr(params, granularity)
            lengths = draw_lengths(least, most, n, params.beta, params.spans, rng)
            starts = draw_starts(lengths, n, rng)
            spans.append(np.stack([starts, starts + lengths], axis=1))
    return np.concatenate(spans)
