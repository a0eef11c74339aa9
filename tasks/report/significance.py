"""Which differences are significant: paired two-sided t-tests, Holm-corrected.

One family per split: every tested pair of systems, each unordered pair once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tasks.report.systems import Floats, System


@dataclass(frozen=True)
class Pair:
    """`system` against `baseline` on the same queries. Without an interval (one query, say) low and high are None."""

    system: str
    baseline: str
    queries: int
    mean: float
    baseline_mean: float
    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    significant: bool


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


def compare(systems: Sequence[System], baselines: Sequence[str], split: str, alpha: float) -> list[Pair]:
    """Every system against every baseline that is in the table, on `split`; two baselines are compared once, the later as the system."""
    present = {system.name: system for system in systems if split in system.values}
    order = list(present)
    met = [name for name in order if name in baselines]
    pairs = [(system, baseline) for system in order for baseline in met if _meets(system, baseline, met, order)]
    tests = [paired_t_test(present[system].values[split], present[baseline].values[split], alpha) for system, baseline in pairs]
    corrected = holm([p for p, _, _ in tests])
    return [
        _pair(present[system], present[baseline], split, test, p_holm, alpha)
        for (system, baseline), test, p_holm in zip(pairs, tests, corrected, strict=True)
    ]


def _meets(system: str, baseline: str, baselines: list[str], order: list[str]) -> bool:
    return order.index(system) > order.index(baseline) if system in baselines else True


def _pair(
    system: System, baseline: System, split: str, test: tuple[float, float | None, float | None], p_holm: float, alpha: float
) -> Pair:
    first, second = system.values[split], baseline.values[split]
    p, low, high = test
    means = float(first.mean()), float(second.mean())
    return Pair(system.name, baseline.name, len(first), *means, float((first - second).mean()), low, high, p, p_holm, p_holm <= alpha)
