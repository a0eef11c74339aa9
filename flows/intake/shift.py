"""Whether texts differ in origin from those a model was trained on: a novelty score for each, and a two-sample test of the scores.

A text's novelty is its distance from a fixed sample of the reference. The test asks whether the batch's novelties are larger than those
of other reference texts, which are not in that sample. A batch on one topic that the reference covers is not novel, however easily a
classifier would tell it apart (docs/retraining.md has figures); texts in another language, of another domain, or without meaning are.

N texts of the batch, H held-out and F fixed texts of the reference, D vector width.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

WORDS = "words"  # the basis of distances without a champion's vectors
NEIGHBOURS = 5
PERMUTATIONS = 999
BLOCK = 4096  # rows of a matrix product at a time


@dataclass(frozen=True)
class Shift:
    """The result of one test. `by`: what distances are based on, a champion's vectors or words."""

    auc: float  # P(a text of the batch is more novel than a held-out one of the reference) + P(equal) / 2
    p: float  # one-sided permutation p-value
    mean: float | None  # 1 - cosine of the mean vectors; None for words
    batch: int  # N
    reference: int  # H
    by: str

    @property
    def words(self) -> str:
        return f"AUC {self.auc:.3f}, p {self.p:.3g} ({self.batch:,} against {self.reference:,} by {self.by})"


def vector_shift(batch_ND: Floats, held_HD: Floats, fixed_FD: Floats, *, by: str) -> Shift:
    """Test vectors: a text's novelty is 1 minus the mean cosine to the NEIGHBOURS nearest fixed texts.

    Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors (ICML 2022, arXiv:2204.06507), with a mean in place of the
    k-th distance.
    """
    batch_ND, held_HD, fixed_FD = (_unit(vectors) for vectors in (batch_ND, held_HD, fixed_FD))
    auc, p = permutation_auc(nearest(batch_ND, fixed_FD), nearest(held_HD, fixed_FD))
    batch_mean_D, reference_mean_D = batch_ND.mean(axis=0), np.concatenate([held_HD, fixed_FD]).mean(axis=0)
    cosine = float(batch_mean_D @ reference_mean_D / max(float(np.linalg.norm(batch_mean_D) * np.linalg.norm(reference_mean_D)), 1e-12))
    return Shift(auc, p, 1 - cosine, len(batch_ND), len(held_HD), by)


def word_shift(batch: Sequence[str], held: Sequence[str], fixed: Sequence[str], *, terms: Callable[[str], list[str]]) -> Shift:
    """Test words: a text's novelty is the mean inverse document frequency of its distinct terms among the fixed texts."""
    counts = Counter(term for text in fixed for term in set(terms(text)))
    auc, p = permutation_auc(*(rarity(texts, counts, len(fixed), terms=terms) for texts in (batch, held)))
    return Shift(auc, p, None, len(batch), len(held), WORDS)


def nearest(texts_ND: Floats, fixed_FD: Floats) -> Floats:
    """Novelty [N] of vectors of length 1: 1 minus the mean cosine to the NEIGHBOURS nearest fixed texts."""
    count = min(NEIGHBOURS, len(fixed_FD))
    parts = []
    for start in range(0, len(texts_ND), BLOCK):
        cosines_NF = texts_ND[start : start + BLOCK] @ fixed_FD.T
        parts.append(1 - np.partition(cosines_NF, -count, axis=1)[:, -count:].mean(axis=1))
    return np.concatenate(parts)


def rarity(texts: Sequence[str], counts: Counter[str], documents: int, *, terms: Callable[[str], list[str]]) -> Floats:
    """Mean log((F + 1) / (df + 1)) of each text's distinct terms, [N]; a text without terms is as novel as one unknown term."""
    unknown_idf = math.log(documents + 1)
    novelties = []
    for text in texts:
        distinct = set(terms(text))
        novelties.append(
            math.fsum(unknown_idf - math.log(counts[term] + 1) for term in distinct) / len(distinct) if distinct else unknown_idf
        )
    return np.array(novelties)


def permutation_auc(first: Floats, second: Floats) -> tuple[float, float]:
    """AUC of `first` being larger than `second`, and its p-value by PERMUTATIONS random relabelings (the observed one counts as one).

    The AUC is Mann and Whitney's U over N H. Under the null hypothesis, that all scores are exchangeable, P(p <= a) <= a for any a.
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([first, second]))
    first_count, second_count = len(first), len(second)

    def auc(total: float) -> float:
        return (total - first_count * (first_count + 1) / 2) / (first_count * second_count)

    observed = float(ranks[:first_count].sum())
    rng = np.random.default_rng(0)
    totals = [float(ranks[rng.permutation(len(ranks))[:first_count]].sum()) for _ in range(PERMUTATIONS)]
    return auc(observed), (1 + sum(total >= observed for total in totals)) / (1 + PERMUTATIONS)


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(lengths, 1e-12)
    return scaled
