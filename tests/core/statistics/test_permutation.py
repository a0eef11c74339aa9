"""The paired permutation test against every sign flip in a plain loop, SciPy's, and the binomial tail."""

import itertools
import math
import random
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from tasks.core.statistics.paired_tests import paired_t_test, permutation_test

ALL = {"permutations": 100_000, "seed": 1}


@pytest.mark.parametrize("seed", range(6))
def test_all_sign_flips_equal_a_plain_loop(seed: int) -> None:
    rng = random.Random(seed)
    first, second = ([rng.choice([0.0, 1 / 3, 0.5, 1.0]) for _ in range(10)] for _ in range(2))  # many ties
    differences = [a - b for a, b in zip(first, second, strict=True)]
    flips = [
        math.fsum(sign * difference for sign, difference in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=10)
    ]
    expected = sum(abs(flipped) >= abs(math.fsum(differences)) - 1e-9 for flipped in flips) / 2**10
    for unit in (1.0, 1e8):
        assert permutation_test(np.array(first) / unit, np.array(second) / unit, **ALL) == expected  # type: ignore[arg-type]


def test_all_sign_flips_of_many_differences_take_little_memory() -> None:
    """2^18 flips: numbered a block at a time, not all for each block."""
    tracemalloc.start()
    try:
        p = permutation_test(np.arange(1.0, 19.0), np.zeros(18), permutations=2**18, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert p == 2 / 2**18 and peak < 2**20, peak


@pytest.mark.parametrize("seed", range(3))
def test_drawn_sign_flips_are_close_to_scipy_and_to_all_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.random(16)
    second = first + rng.normal(0.08, 0.2, 16)
    exact_p = permutation_test(first, second, permutations=2**16, seed=0)
    theirs = stats.permutation_test((first, second), lambda a, b, axis: (a - b).mean(axis), permutation_type="samples", n_resamples=np.inf)
    assert exact_p == pytest.approx(theirs.pvalue, abs=1e-12)
    drawn_p = permutation_test(first, second, permutations=2**16 - 1, seed=3)
    assert drawn_p != exact_p
    assert drawn_p == pytest.approx(exact_p, abs=5 * math.sqrt(exact_p * (1 - exact_p) / 2**16))
    assert drawn_p == permutation_test(first, second, permutations=2**16 - 1, seed=3)
    assert drawn_p != permutation_test(first, second, permutations=2**16 - 1, seed=4)


def test_permutation_test_worked_by_hand() -> None:
    # Differences 1, 1, 1: of 8 flips, +++ and --- are as far from 0. Two queries that tie change nothing.
    assert permutation_test(np.array([1.0, 1, 1, 0, 0.5]), np.array([0.0, 0, 0, 0, 0.5]), **ALL) == 0.25  # type: ignore[arg-type]
    assert permutation_test(np.append(np.ones(3), np.zeros(40)), np.zeros(43), permutations=8, seed=1) == 0.25, "however many tie"
    assert permutation_test(np.array([0.3, 0.2]), np.array([0.3, 0.2]), **ALL) == 1.0  # type: ignore[arg-type]
    assert permutation_test(np.array([]), np.array([]), **ALL) == 1.0  # type: ignore[arg-type]
    assert permutation_test(np.array([0.3]), np.array([0.1]), **ALL) == 1.0  # type: ignore[arg-type]


def test_the_signs_of_a_group_are_flipped_at_once() -> None:
    rng = random.Random(1)
    differences, groups = [rng.choice([-0.5, 0.0, 1 / 3, 1.0]) for _ in range(14)], [rng.randrange(6) for _ in range(14)]
    flips = [
        sum(signs[group] * difference for group, difference in zip(groups, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=6)
    ]
    expected = sum(abs(flipped) >= abs(sum(differences)) - 1e-9 for flipped in flips) / 2**6
    second = np.array([rng.choice([0.0, 0.25, 1.0]) for _ in range(14)])
    assert permutation_test(differences + second, second, groups=np.array(groups), **ALL) == expected  # type: ignore[arg-type]


def test_equal_differences_give_the_sign_test() -> None:
    """With differences of one size, the sum is as far from 0 as seen where the number of plus signs is: a binomial tail."""
    differences = np.array([0.1] * 40 + [-0.1] * 22)
    p = permutation_test(differences, np.zeros(62), permutations=200_000, seed=5)
    expected = stats.binomtest(40, 62).pvalue
    assert p == pytest.approx(expected, abs=5 * math.sqrt(expected / 200_000))


def test_a_drawn_p_is_never_0_and_near_the_t_tests() -> None:
    rng = np.random.default_rng(7)
    first = rng.random(500)
    assert permutation_test(first + 1, first, permutations=1000, seed=0) == 1 / 1001
    assert permutation_test(np.tile([1.0, 0.0], 50), np.tile([0.0, 1.0], 50), permutations=1000, seed=0) == 1, "a sum of 0"
    second = first + rng.normal(0.02, 0.2, 500)
    assert permutation_test(first, second, permutations=50_000, seed=0) == pytest.approx(paired_t_test(first, second, 0.05)[0], abs=0.01)
