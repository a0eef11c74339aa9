"""Shapley values: a difference split over the factors that cause it, fairly and without a remainder.

Let v(S) be the metric when the factors in S are new and all others old. Factor i of n gets

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S))

(Shapley, A value for n-person games, 1953, equation 13). The phi add up to v(all) - v(none): efficiency. Fractions keep that exact.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

EXACT = 6  # factors at most: 2^6 coalitions
ORDERS = 20  # sampled if there are more factors
SEED = 0  # of the sampled orders

Group = frozenset[str]  # factors that change together
Coalition = frozenset[str]  # the factors that are new
Value = Callable[[Coalition], Fraction]


@dataclass(frozen=True)
class Share:
    """A group's part of the difference. `sampling`: standard error due to sampling orders, 0 if the value is exact."""

    value: Fraction
    sampling: float = 0.0


def needed_coalitions(groups: Sequence[Group]) -> list[Coalition]:
    """The coalitions whose values `shares` needs, each once, the empty one first and the full one last."""
    if len(groups) <= EXACT:
        coalitions = (_joined(chosen) for size in range(len(groups) + 1) for chosen in itertools.combinations(groups, size))
    else:
        coalitions = (_joined(order[:size]) for order in orders(groups) for size in range(len(groups) + 1))
    return sorted(dict.fromkeys(coalitions), key=len)


def shares(groups: Sequence[Group], value: Value) -> dict[Group, Share]:
    """Each group's Shapley value, exactly for up to EXACT groups.

    For more, it is estimated by the mean over ORDERS random orders of what a group adds to those before it (Castro, Gomez and Tejada,
    Polynomial calculation of the Shapley value based on sampling, 2009); the estimates add up to the whole difference too.
    """
    if len(groups) <= EXACT:
        return {group: Share(_exact(group, groups, value)) for group in groups}
    gains: dict[Group, list[Fraction]] = {group: [] for group in groups}
    for order in orders(groups):
        for place, group in enumerate(order):
            before = _joined(order[:place])
            gains[group].append(value(before | group) - value(before))
    return {group: Share(sum(found, Fraction()) / len(found), standard_error(found)) for group, found in gains.items()}


def orders(groups: Sequence[Group]) -> list[list[Group]]:
    """ORDERS random orders, always the same ones."""
    draw = random.Random(SEED)
    return [draw.sample(groups, len(groups)) for _ in range(ORDERS)]


def merge_pair(groups: Sequence[Group], invalid: Iterable[Coalition]) -> list[Group]:
    """`groups` with two of them merged: the pair that the largest number of `invalid` coalitions separates. These are not needed then.

    Raises ValueError if no invalid coalition separates a pair, so that merging cannot avoid it.
    """
    refused = list(invalid)

    def separated(pair: tuple[Group, Group]) -> int:
        return sum((pair[0] <= one) != (pair[1] <= one) for one in refused)

    best = max(itertools.combinations(groups, 2), key=separated, default=None)
    if best is None or not separated(best):
        raise ValueError("no two groups separate an invalid coalition")
    merged = best[0] | best[1]
    return [merged if group == best[0] else group for group in groups if group != best[1]]


def _exact(group: Group, groups: Sequence[Group], value: Value) -> Fraction:
    count, others = len(groups), [other for other in groups if other != group]
    total = Fraction()
    for size in range(count):
        weight = Fraction(math.factorial(size) * math.factorial(count - size - 1), math.factorial(count))
        for chosen in itertools.combinations(others, size):
            before = _joined(chosen)
            total += weight * (value(before | group) - value(before))
    return total


def _joined(groups: Iterable[Group]) -> Coalition:
    return frozenset[str]().union(*groups)


def standard_error(values: Sequence[Fraction]) -> float:
    """The standard error of the mean: s / sqrt(n), s with n - 1 in the denominator."""
    mean = sum(values, Fraction()) / len(values)
    return math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
