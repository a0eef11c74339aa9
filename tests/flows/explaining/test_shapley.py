"""Shapley values against a plain loop over all orders, and the merging of factors that cannot be told apart."""

import itertools
import random
from fractions import Fraction

import pytest

from flows.explaining import shapley
from flows.explaining.shapley import EXACT, Group, merge_pair, needed_coalitions, shares


def game(names: list[str], seed: int) -> dict[frozenset[str], Fraction]:
    draw = random.Random(seed)
    subsets = (frozenset(chosen) for size in range(len(names) + 1) for chosen in itertools.combinations(names, size))
    return {subset: Fraction(draw.uniform(-1, 1)) for subset in subsets}


def singletons(names: list[str]) -> list[Group]:
    return [frozenset({name}) for name in names]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_values_are_the_mean_gain_over_all_orders(count: int) -> None:
    names = list("abcdef")[:count]
    worth = game(names, count)
    expected = dict.fromkeys(names, Fraction())
    all_orders = list(itertools.permutations(names))
    for order in all_orders:
        for place, name in enumerate(order):
            expected[name] += (worth[frozenset(order[: place + 1])] - worth[frozenset(order[:place])]) / len(all_orders)
    result = shares(singletons(names), worth.__getitem__)
    assert {name: result[frozenset({name})].value for name in names} == expected
    assert sum(share.value for share in result.values()) == worth[frozenset(names)] - worth[frozenset()], "exactly, not nearly"


def test_a_case_by_hand() -> None:
    """Two factors that only help together (+6), and one that does nothing: 3, 3, 0."""
    worth = {coalition: Fraction(6 * (coalition >= {"a", "b"})) for coalition in game(["a", "b", "c"], 0)}
    assert [share.value for share in shares(singletons(["a", "b", "c"]), worth.__getitem__).values()] == [3, 3, 0]


def test_many_factors_are_sampled_and_still_add_up() -> None:
    names = [f"f{number}" for number in range(EXACT + 2)]
    worth = {coalition: Fraction(len(coalition) ** 2 + 5 * ("f0" in coalition)) for coalition in game(names, 1)}
    coalitions: set[frozenset[str]] = set()

    def value(coalition: frozenset[str]) -> Fraction:
        coalitions.add(coalition)
        return worth[coalition]

    result = shares(singletons(names), value)
    assert sum(share.value for share in result.values()) == worth[frozenset(names)]
    assert coalitions == set(needed_coalitions(singletons(names)))
    exact = {group: shapley._exact(group, singletons(names), worth.__getitem__) for group in singletons(names)}
    for group, share in result.items():
        assert share.sampling > 0
        assert abs(float(share.value - exact[group])) < 4 * share.sampling
    assert shares(singletons(names), value) == result, "the same orders each time"


def test_groups_count_as_one_factor() -> None:
    worth = game(["a", "b", "c"], 2)
    groups = [frozenset({"a", "c"}), frozenset({"b"})]
    result = shares(groups, worth.__getitem__)
    none, ac, b, everything = (worth[frozenset(members)] for members in ("", "ac", "b", "abc"))
    assert result[groups[0]].value == ((ac - none) + (everything - b)) / 2
    assert [len(members) for members in needed_coalitions(groups)] == [0, 1, 2, 3]


def test_the_pair_that_is_refused_apart_is_merged() -> None:
    groups = singletons(["data", "parameters", "code"])
    apart = [subset for subset in needed_coalitions(groups) if ("parameters" in subset) != ("code" in subset)]
    merged = merge_pair(groups, apart)
    assert merged == [frozenset({"data"}), frozenset({"parameters", "code"})]
    assert not [subset for subset in needed_coalitions(merged) if subset in apart]
    for coalition in (frozenset[str](), frozenset({"data", "parameters", "code"})):
        with pytest.raises(ValueError, match="no two groups"):
            merge_pair(groups, [coalition])
