"""How large a difference is, and how large it must be for a paired t-test to see it: Cohen's d and power by the noncentral t.

Cohen 1988, chapter 2; Cumming and Finch 2001 for the interval. d is the mean of the paired differences over their standard deviation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from tasks.core.plurals import counted
from tasks.core.statistics.clusters import Floats, Numbers, mean_over_groups

WANTED = 0.8  # power
MOST = 10**9  # queries that are tried, at most
NODES, WEIGHTS = np.polynomial.legendre.leggauss(256)
REACH = 9.0  # standard deviations of Z that are integrated over


@dataclass(frozen=True)
class Effect:
    """A paired difference of means over Q queries, and the power of its two-sided t-test at level alpha.

    `d` has its 1 - alpha interval; `power`: the chance to find a difference this large significant; `detectable`: the least difference
    found with WANTED power; `needed`: queries for WANTED power, None beyond MOST.
    """

    d: float
    d_low: float
    d_high: float
    power: float
    detectable: float
    needed: int | None


def effect(differences: Floats, alpha: float, groups: Numbers | None = None) -> Effect | None:
    """The effect in `differences` [Q]; None if they have no variance but rounding, or nothing can be tested.

    With the number of each query's group in `groups` [Q], tests are over groups (clusters.mean_over_groups). d is still relative to the
    standard deviation of single differences, and `needed` still counts queries.
    """
    estimate = mean_over_groups(differences, np.arange(len(differences)) if groups is None else groups)
    if not estimate.testable or not estimate.error:
        return None
    draws = estimate.effective
    deviation = estimate.error * math.sqrt(draws)  # of one draw
    d, scale = estimate.mean / deviation, deviation / float(differences.std(ddof=1))
    low, high = d_interval(d, draws, alpha)
    needed = smallest_count(lambda queries: power(d, queries, alpha) >= WANTED, MOST)
    return Effect(
        d * scale,
        low * scale,
        high * scale,
        power(d, draws, alpha),
        detectable(draws, alpha) * deviation,
        needed and math.ceil(needed * len(differences) / draws),
    )


def power(d: float, queries: float, alpha: float) -> float:
    """The chance that a paired two-sided t-test over `queries` at level `alpha` rejects, if the true effect is `d`."""
    critical, shift = float(stats.t.ppf(1 - alpha / 2, queries - 1)), abs(d) * math.sqrt(queries)
    return min(1.0, noncentral_t(-critical, queries - 1, shift) + noncentral_t(-critical, queries - 1, -shift))


def detectable(queries: float, alpha: float, wanted: float = WANTED) -> float:
    """The smallest d that a test over this many queries finds significant with probability `wanted`; 0 if `alpha` is at least `wanted`."""
    if alpha >= wanted:
        return 0.0
    return _root(lambda d: power(d, queries, alpha) - wanted)


def smallest_count(enough: Callable[[int], bool], most: int) -> int | None:
    """The least number of queries from 2 that is `enough`, as all larger numbers must be; None if no power of 2 up to `most` is."""
    high = 2
    while not enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def d_interval(d: float, queries: float, alpha: float) -> tuple[float, float]:
    """The 1 - alpha interval of `d`: its ends are the effects for which a t at least as low, or as high, has probability alpha / 2."""
    t, freedom = d * math.sqrt(queries), queries - 1
    reach = 8 + 8 * abs(t) / math.sqrt(2 * freedom)
    low, high = (
        float(optimize.brentq(lambda shift, share=share: noncentral_t(t, freedom, shift) - share, t - reach, t + reach))
        for share in (1 - alpha / 2, alpha / 2)
    )
    return low / math.sqrt(queries), high / math.sqrt(queries)


def noncentral_t(t: float, freedom: float, shift: float) -> float:
    """P(T <= t) for T = (Z + shift) / S, Z standard normal, S^2 chi-squared over its `freedom`; by Gauss-Legendre quadrature.

    scipy.stats.nct is NaN for many large `shift`. The integral is over S where P(Z <= t S - shift) is smooth in S, else over Z.
    """
    return _upper(-t, freedom, -shift) if t < 0 else 1.0 - _upper(t, freedom, shift)


def _upper(t: float, freedom: float, shift: float) -> float:
    """P(T > t) for t >= 0."""
    if t <= math.sqrt(2 * freedom):
        low, high = float(stats.chi.ppf(1e-15, freedom)), float(stats.chi.isf(1e-15, freedom))
        return _integral(lambda s: stats.norm.sf(t * s / math.sqrt(freedom) - shift) * stats.chi.pdf(s, freedom), low, high, freedom)
    low = max(-REACH, min(-shift, REACH))  # below -shift, T is negative
    return _integral(lambda z: stats.chi.cdf((z + shift) * math.sqrt(freedom) / t, freedom) * stats.norm.pdf(z), low, REACH, freedom)


def _integral(values: Callable[[Floats], Floats], low: float, high: float, freedom: float) -> float:
    """The integral of `values` from `low` to `high`. It may rise like a power of `freedom` at `low`: few degrees need more nodes there."""
    exponent = max(1.0, 3 / freedom)
    nodes = (NODES + 1) / 2
    weights = WEIGHTS / 2 * exponent * nodes ** (exponent - 1)
    return float(weights @ values(low + nodes**exponent * (high - low))) * (high - low)


def _root(rising: Callable[[float], float]) -> float:
    """The zero of `rising`, an increasing function that is negative at 0."""
    high = 1.0
    while rising(high) < 0:
        high *= 2
    return float(optimize.brentq(rising, 0.0, high))


def power_warning(where: str, queries: int, difference: float, estimate: Effect | None) -> str:
    """One sentence if the difference shown is too small for the number of queries; empty otherwise."""
    if not estimate or difference == 0 or estimate.power >= WANTED:
        return ""
    needed = f"more than {MOST:,} are" if estimate.needed is None else f"{estimate.needed:,} are"
    return (
        f"{where}: {counted(queries, 'queries')} show{'s' * (queries == 1)} a difference of {abs(difference):.4f} with "
        f"{estimate.power:.0%} power; {needed} needed for {WANTED:.0%}"
    )
