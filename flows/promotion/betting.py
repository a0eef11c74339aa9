"""Tests and a lower bound for the mean of differences in [-1, 1], by betting against the claim that the mean is small.

Waudby-Smith, Ramdas: Estimating means of bounded random variables by betting, JRSS B 86 (2024), arXiv:2010.09686. A gambler whose capital
is 1 bets on each difference in turn that it is above c:

    K_0(c) = 1,   K_i(c) = K_{i-1}(c) (1 + b_i (d_i - c)),   0 <= b_i < 1 / (1 + c),   b_i a function of d_1 ... d_{i-1} alone

If each difference has a mean of at most c, given those before it, the bets lose on average: K(c) is a nonnegative supermartingale, and
the chance that it ever reaches 1 / alpha is at most alpha (Ville 1939). So "the mean is at most c" is rejected at level alpha the first
time that it does, whatever the distribution, after however few or many differences, and whenever one looks. No normal
approximation, no spread that must be known. The gambler stops there.

The bets are those of Voracek, Orabona: STaR-Bets, 2025, arXiv:2505.22422: set again each time for what is still to be won and how many
differences are left, with the variance as Waudby-Smith and Ramdas estimate it. With few differences, bets set once for all find less.

    b_i = sqrt(2 (log(1 / alpha) - log K_{i-1}) / ((Q - i + 1) v_{i-1})),   at most MOST_OF_IT / (1 + c)
    v_i = (v_0 + sum_{j<=i} (d_j - m_j)^2) / (i + 1),   m_i = sum_{j<=i} d_j / (i + 1),   v_0 = 1

A poor guess of the variance costs power, never validity. Q: differences in a sequence; sequences lie along the last axis.

Queries that share a relevant document are not independent draws (tasks.core.statistics.clusters). A group of them is one draw. Let s_i be
the number of queries that it counts as, over the most that a group may count as, and d_i its mean difference times s_i (groups.Draws). The
bet is won or lost on d_i - s_i c, which is in [-1 - c, 1 - c] as before, and whose mean is at most 0 if that of a query is at most c.
Without `sizes`, every s_i is 1.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_OF_IT = 0.75  # of 1 / (1 + c), the largest bet that cannot ruin (Waudby-Smith and Ramdas: 1/2 or 3/4)
POINTS = 65  # of c that `lower_bound` tries at once
ROUNDS = 3  # of refinement, which find the bound to 2 / 64^3 = 8e-6


class Bets(NamedTuple):
    """How bold the bets are: v_0, and the share of the largest bet that is allowed. Validity does not depend on them."""

    variance: float = 1.0
    most: float = MOST_OF_IT


STEADY = Bets()
BOLD = Bets(0.1, 0.95)  # for few queries: detects more there, and when a model loses on many of them


def log_capital(differences: Floats, c: Floats | float, alpha: float, *, sizes: Floats | None = None, bets: Bets = STEADY) -> Floats:
    """log K_Q(c) [...] of differences [..., Q]; c broadcasts to [...], sizes [Q]. K stays as it is once it has reached 1 / alpha."""
    c, count, target = np.asarray(c, np.float64), differences.shape[-1], math.log(1 / alpha)
    variance, sizes = variances(differences, bets.variance), np.ones(count) if sizes is None else sizes
    limit = bets.most / np.maximum(1 + c, 1e-12)
    capital = np.zeros(np.broadcast_shapes(differences.shape[:-1], c.shape))
    for place in range(count):
        bet = np.sqrt(2 * np.maximum(target - capital, 0.0) / ((count - place) * variance[..., place]))
        capital = capital + np.log1p(np.minimum(bet, limit) * (differences[..., place] - sizes[place] * c))
    return capital


def variances(differences: Floats, first: float) -> Floats:
    """v_0 ... v_{Q-1} [..., Q]: for each difference, the variance estimated from those before it, and `first` at first."""
    places = np.arange(1, differences.shape[-1] + 1)
    means = np.cumsum(differences, axis=-1) / (places + 1)
    estimates = (first + np.cumsum((differences - means) ** 2, axis=-1)) / (places + 1)
    return np.concatenate([np.full((*differences.shape[:-1], 1), first), estimates[..., :-1]], axis=-1)


def shows_more(
    differences: Floats, c: Floats | float, alpha: float, *, sizes: Floats | None = None, bets: Bets = STEADY
) -> npt.NDArray[np.bool_]:
    """Whether "the mean is at most c" is rejected at level `alpha` [...], for a c that was set beforehand.

    It is never rejected if the mean of the sequence is at most c: bets may be won early, and the mean fall afterwards.
    """
    won = log_capital(differences, c, alpha, sizes=sizes, bets=bets) >= math.log(1 / alpha)
    rejected: npt.NDArray[np.bool_] = won & (_mean(differences, sizes) > c)
    return rejected


def _mean(differences: Floats, sizes: Floats | None) -> Floats:
    mean: Floats = differences.mean(axis=-1) / (1.0 if sizes is None else sizes.mean())
    return mean


def lower_bound(differences: Floats, alpha: float, sizes: Floats | None = None, *, bets: Bets = STEADY) -> float:
    """A lower bound for the mean of differences [Q]: every c below it is rejected. It is at most their mean, and -1 if no c is rejected.

    Rule guaranteed only shows it, and decides by `shows_more`. ValueError for a difference outside [-1, 1].
    """
    if not len(differences):
        return -1.0
    check(differences)
    low, high = -1.0, float(_mean(differences, sizes))
    for _ in range(ROUNDS):
        points = np.linspace(low, high, POINTS)
        accepted = np.flatnonzero(log_capital(differences, points[1:], alpha, sizes=sizes, bets=bets) < math.log(1 / alpha))
        if not len(accepted):
            return high
        low, high = float(points[accepted[0]]), float(points[accepted[0] + 1])
    return low


def check(differences: Floats) -> None:
    """Raise ValueError for a difference outside [-1, 1]."""
    if np.abs(differences).max() > 1:
        raise ValueError(f"found a difference of {differences[np.abs(differences).argmax()]:g}, expected differences in [-1, 1]")
