"""Shapley values: a difference split over the factors that make it, fairly and without a rest.

With v(S) the metric where the factors in S are the new ones and all others the old ones, factor i of n gets

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
ORDERS = 20  # sampled where there are more

Group = frozenset[str]  # factors that are old or new together
Coalition = frozenset[str]  # the factors that are new
Value = Callable[[Coalition], Fraction]


@dataclass(frozen=True)
class Share:
    """A group's part of the difference. `sampling`: standard error of what sampled orders leave open, 0 where all were taken."""

    value: Fraction
    sampling: float = 0.0


def needed(groups: Sequence[Group], seed: int = 0) -> list[Coalition]:
    """The coalitions whose values `shares` asks for, each once: none first, all last."""
    if len(groups) <= EXACT:
        found = (_joined(chosen) for size in range(len(groups) + 1) for chosen in itertools.combinations(groups, size))
    else:
        found = (_joined(order[:size]) for order in orders(groups, seed) for size in range(len(groups) + 1))
    return sorted(dict.fromkeys(found), key=len)


def shares(groups: Sequence[Group], value: Value, seed: int = 0) -> dict[Group, Share]:
    """Each group's Shapley value, exactly for up to EXACT groups.

    Above, the mean over ORDERS random orders of what a group adds to those before it (Castro, Gomez and Tejada, Polynomial
    calculation of the Shapley value based on sampling, 2009), which adds up to the whole difference too.
    """
    if len(groups) <= EXACT:
        return {group: Share(_exact(group, groups, value)) for group in groups}
    gains: dict[Group, list[Fraction]] = {group: [] for group in groups}
    for order in orders(groups, seed):
        for place, group in enumerate(order):
            before = _joined(order[:place])
            gains[group].append(value(before | group) - value(before))
    return {group: Share(sum(found, Fraction()) / len(found), _standard_error(found)) for group, found in gains.items()}


def orders(groups: Sequence[Group], seed: int) -> list[list[Group]]:
    """ORDERS random orders, the same ones for the same seed."""
    draw = random.Random(seed)
    return [draw.sample(groups, len(groups)) for _ in range(ORDERS)]


def merged(groups: Sequence[Group], invalid: Iterable[Coalition]) -> list[Group]:
    """`groups` with two of them made one: the pair that separates most of the `invalid` coalitions, which are not needed then.

    ValueError where no pair separates one: nothing can be merged to do without it.
    """
    refused = list(invalid)

    def separated(pair: tuple[Group, Group]) -> int:
        return sum((pair[0] <= one) != (pair[1] <= one) for one in refused)

    best = max(itertools.combinations(groups, 2), key=separated, default=None)
    if best is None or not separated(best):
        raise ValueError("no two groups separate an invalid coalition")
    both = best[0] | best[1]
    return [both if group == best[0] else group for group in groups if group != best[1]]


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


def _standard_error(found: Sequence[Fraction]) -> float:
    """Of their mean: s / sqrt(n), s with n - 1 in the denominator."""
    mean = sum(found, Fraction()) / len(found)
    return math.sqrt(sum((one - mean) ** 2 for one in found) / (len(found) - 1) / len(found))
