"""Tests of whether two systems differ on the same queries, and the correction for testing many pairs."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]


def paired_t_test(first: Floats, second: Floats, alpha: float) -> tuple[float, float | None, float | None]:
    """Two-sided p and the 1 - alpha interval of the mean of first - second, both [Q].

    If all differences are equal, there is no variance to test with: p is 1 if they are 0, otherwise 0. With fewer than two
    queries p is 1.
    """
    differences = first - second
    if len(differences) < 2:
        return 1.0, None, None
    if np.ptp(differences) == 0:
        constant = float(differences[0])
        return (1.0 if constant == 0 else 0.0), constant, constant
    result = stats.ttest_rel(first, second)
    interval = result.confidence_interval(1 - alpha)
    return float(result.pvalue), float(interval.low), float(interval.high)


def mean_interval(values: Floats, alpha: float) -> tuple[float, float]:
    """The 1 - alpha t-interval of the mean of `values` [Q]; the mean itself twice if there is no variance."""
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    half = float(stats.t.ppf(1 - alpha / 2, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): the i-th smallest of m is multiplied by m - i + 1, monotone, at most 1."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - step) * p_values[place]))
        corrected[place] = highest
    return corrected
