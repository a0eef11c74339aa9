"""Tests of whether two systems differ on the same queries, and the correction for testing many pairs.

Where `groups` [Q] has the number of each query's group (tasks.core.statistics.clusters), groups are the independent draws, not queries.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from tasks.core.statistics.clusters import SAME, Mean, Numbers, mean_over_groups

Floats = npt.NDArray[np.float64]
BLOCK = 512  # sign flips at a time


def paired_t_test(first: Floats, second: Floats, alpha: float, groups: Numbers | None = None) -> tuple[float, float | None, float | None]:
    """Two-sided p and the 1 - alpha interval of the mean of first - second, both [Q].

    With `groups`, error and degrees of freedom are those of clusters.mean_over_groups. If all differences (or groups) are equal but for
    rounding, there is no variance to test with, and none for an interval: p is 1 if they are 0, otherwise that of all sign flips,
    2^(1 - Q) (Fisher 1935). With fewer than two queries, or one group with nearly all of them, p is 1.
    """
    differences = first - second
    estimate = mean_over_groups(differences, np.arange(len(differences)) if groups is None else groups)
    if not estimate.testable:
        return 1.0, None, None
    if not estimate.error:
        is_zero = abs(estimate.mean) <= SAME * np.abs(differences).max()
        return (1.0 if is_zero else 2.0 ** (1 - estimate.groups)), None, None
    p = 2 * float(stats.t.sf(abs(estimate.mean) / estimate.error, estimate.effective - 1))
    half = half_width(estimate, alpha)
    return p, estimate.mean - half, estimate.mean + half


def half_width(estimate: Mean, alpha: float) -> float:
    """Half of the two-sided 1 - alpha t-interval of a mean."""
    return float(stats.t.ppf(1 - alpha / 2, estimate.effective - 1)) * estimate.error


def mean_interval(values: Floats, alpha: float, groups: Numbers | None = None) -> tuple[float | None, float | None]:
    """The 1 - alpha t-interval of the mean of `values` [Q].

    It is the mean itself twice if there is no variance, and None twice for one query or group (or nearly), which says nothing about others.
    """
    estimate = mean_over_groups(values, np.arange(len(values)) if groups is None else groups)
    if not estimate.testable:
        return None, None
    half = half_width(estimate, alpha)
    return estimate.mean - half, estimate.mean + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): the i-th smallest of m is multiplied by m - i + 1, monotone, at most 1."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - step) * p_values[place]))
        corrected[place] = highest
    return corrected


def permutation_test(first: Floats, second: Floats, *, permutations: int, seed: int, groups: Numbers | None = None) -> float:
    """Two-sided p of the paired randomization test of first - second, both [Q]: the share of sign flips of the differences whose mean is at
    least as far from 0 (Fisher 1935; Smucker, Allan, Carterette 2007).

    All 2^D flips of the D differences that are not 0 are counted, if they are at most `permutations`. Otherwise that many are drawn by
    `seed`, and p is (extreme + 1) / (permutations + 1), which is never 0. Sums that differ only by rounding count as equal. With `groups`,
    the signs of all differences of a group are flipped together.
    """
    differences = first - second if groups is None else np.bincount(groups, first - second)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    observed = abs(math.fsum(differences)) - SAME * math.fsum(abs(differences))
    if 2 ** min(len(differences), 62) <= permutations:
        bits = len(differences)
        numbers = (np.arange(start, min(start + BLOCK, 2**bits)) for start in range(0, 2**bits, BLOCK))
        return sum(_as_far((block[:, None] >> np.arange(bits)) & 1, differences, observed) for block in numbers) / float(2**bits)
    draw, extreme = np.random.Generator(np.random.PCG64(seed)), 0
    for start in range(0, permutations, BLOCK):
        rows = min(BLOCK, permutations - start)
        bytes_ = np.frombuffer(draw.bytes(rows * -(-len(differences) // 8)), np.uint8).reshape(rows, -1)
        extreme += _as_far(np.unpackbits(bytes_, axis=1, count=len(differences)), differences, observed)
    return (extreme + 1) / (permutations + 1)


def _as_far(flips: npt.NDArray[np.integer[Any]], differences: Floats, observed: float) -> int:
    """How many rows of `flips` [B, D], 1 for a sign that is flipped, give a sum at least `seen` away from 0."""
    sums = differences.sum() - 2 * (flips.astype(np.float64) @ differences)
    return int((np.abs(sums) >= observed).sum())
