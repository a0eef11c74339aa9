"""A lower confidence sequence for the mean of differences in [-1, 1], by betting against the claim that the mean is small.

Waudby-Smith, Ramdas: Estimating means of bounded random variables by betting, JRSS B 86 (2024), arXiv:2010.09686. A gambler whose capital
is 1 bets on each difference in turn that it is above c:

    K_0(c) = 1,   K_i(c) = K_{i-1}(c) (1 + b_i (d_i - c)),   0 <= b_i < 1 / (1 + c),   b_i a function of d_1 ... d_{i-1} alone

If each difference has a mean of at most c, given those before it, the bets lose on average: K(c) is a nonnegative supermartingale, and the
chance that it ever reaches 1 / alpha is at most alpha (Ville 1939; their Proposition 2). So "the mean is at most c" is rejected at
level alpha the first time that it does, whatever the distribution, after however few or many differences, and whenever one looks. Those c
that are rejected after some difference or other are all below the bound L. No normal approximation, no variance that must be known.

All functions are over the last axis, so that many sequences are computed together. Q: differences in a sequence.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_OF_IT = 0.75  # of 1 / (1 + c), the largest bet that cannot ruin: theirs is 1/2 or 3/4
HALVINGS = 40  # of [-1, 1], so L is found to 2e-12


def bets(differences: Floats, alpha: float) -> Floats:
    """The bets [..., Q] before they are limited for a c: their predictable plug-in for a fixed number of differences, on [-1, 1]:

        b_i = sqrt(2 log(1 / alpha) / (Q v_{i-1})),   v_i = (1 + sum_{j<=i} (d_j - m_j)^2) / (i + 1),   m_i = sum_{j<=i} d_j / (i + 1)

    with v_0 = 1. They grow most where the spread is small. A poor guess of the spread costs power, never validity.
    """
    places = np.arange(1, differences.shape[-1] + 1)
    means = np.cumsum(differences, axis=-1) / (places + 1)
    variances = (1 + np.cumsum((differences - means) ** 2, axis=-1)) / (places + 1)
    before = np.concatenate([np.ones((*differences.shape[:-1], 1)), variances[..., :-1]], axis=-1)
    return np.sqrt(2 * math.log(1 / alpha) / (len(places) * before))


def log_capital(differences: Floats, c: float, alpha: float) -> Floats:
    """log K_1(c) ... log K_Q(c) [..., Q]. It falls as c rises: so does each factor, also where its bet is limited."""
    limit = MOST_OF_IT / (1 + c) if c > -1 else math.inf
    return np.cumsum(np.log1p(np.minimum(bets(differences, alpha), limit) * (differences - c)), axis=-1)


def rejects(differences: Floats, c: float, alpha: float) -> npt.NDArray[np.bool_]:
    """Whether "the mean is at most c" is rejected at level `alpha`, after some difference or other [...]."""
    found: npt.NDArray[np.bool_] = log_capital(differences, c, alpha).max(axis=-1) >= math.log(1 / alpha)
    return found


def lower_bound(differences: Floats, alpha: float) -> float:
    """L for differences [Q] in [-1, 1], in their order: the mean is above L but with a chance of `alpha`; -1 if nothing can be said.

    At most their mean: bets won early would otherwise set it above a mean that fell afterwards. ValueError outside [-1, 1].
    """
    if not len(differences):
        return -1.0
    if np.abs(differences).max() > 1:
        raise ValueError(f"found a difference of {differences[np.abs(differences).argmax()]:g}, expected differences in [-1, 1]")
    mean = float(differences.mean())
    low, high = -1.0, mean
    if rejects(differences, high, alpha):
        return mean
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(differences, middle, alpha) else (low, middle)
    return low
