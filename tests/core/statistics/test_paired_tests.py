"""The paired t-test, its interval, and Holm's correction, against the written-out formulas."""

import math
import random

import numpy as np
import pytest

from tasks.core.statistics.paired_tests import holm, mean_interval, paired_t_test


def tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's distribution by Simpson's rule over its density."""
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    steps = 20000
    width = t / steps
    area = sum(
        (1 if i in (0, steps) else 4 if i % 2 else 2) * (1 + (i * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)
    )
    return 0.5 - constant * area * width / 3


@pytest.mark.parametrize("seed", range(4))
def test_paired_t_test_equals_the_formula(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(3, 40)
    first = [rng.choice([0.0, 0.5, 1.0]) for _ in range(count)]
    second = [rng.random() for _ in range(count)]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / count
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1) / count)
    p, low, high = paired_t_test(np.array(first), np.array(second), 0.05)
    assert p == pytest.approx(2 * tail(abs(mean / error), count - 1), abs=1e-7)
    assert low is not None
    assert high is not None
    assert (low + high) / 2 == pytest.approx(mean)
    assert tail((high - mean) / error, count - 1) == pytest.approx(0.025, abs=1e-7)  # the interval leaves 2.5% on each side
    own_mean = sum(first) / count
    own_error = math.sqrt(sum((a - own_mean) ** 2 for a in first) / (count - 1) / count)
    own_low, own_high = mean_interval(np.array(first), 0.1)
    assert own_low is not None and own_high is not None
    assert tail((own_high - own_mean) / own_error, count - 1) == pytest.approx(0.05, abs=1e-7)
    assert (own_low + own_high) / 2 == pytest.approx(own_mean)
    assert paired_t_test(np.array(first) / 1e8, np.array(second) / 1e8, 0.05)[0] == pytest.approx(p), "in any unit"


def test_paired_t_test_worked_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard deviation 1, error 1 / sqrt 3, t = 2 sqrt 3 = 3.464102 with 2 degrees of freedom.
    # With 2 degrees P(|T| > t) = 1 - t / sqrt(t^2 + 2) = 1 - 3.464102 / 3.741657 = 0.074180.
    assert paired_t_test(np.array([1.0, 3.0, 5.0]), np.array([0.0, 1.0, 2.0]), 0.05)[0] == pytest.approx(0.074180, abs=1e-6)


def test_paired_t_test_without_variance() -> None:
    values = np.array([0.1, 0.7, 0.3])
    assert paired_t_test(values, values, 0.05) == (1.0, None, None)
    assert paired_t_test(np.array([1.0, 1.0]), np.array([0.5, 0.5]), 0.05) == (0.5, None, None), "two heads or two tails"
    assert paired_t_test(values + 0.1, values, 0.05) == (0.25, None, None), "equal but for rounding"
    assert paired_t_test(np.ones(4), np.zeros(4), 0.05, np.array([0, 0, 1, 1])) == (0.5, None, None), "two groups"
    assert paired_t_test(np.arange(4.0), np.zeros(4), 0.05, np.zeros(4, int)) == (1.0, None, None), "one group"
    assert paired_t_test(np.array([1.0]), np.array([0.5]), 0.05) == (1.0, None, None)
    assert paired_t_test(np.array([]), np.array([]), 0.05) == (1.0, None, None)
    assert mean_interval(np.array([0.4, 0.4]), 0.05) == (0.4, 0.4)


def test_one_query_or_group_has_no_interval() -> None:
    """With NFCorpus or TREC-COVID all queries may share documents: an interval without width would say that the mean is certain."""
    assert mean_interval(np.array([0.4]), 0.05) == (None, None)
    assert mean_interval(np.array([0.1, 0.9, 0.5]), 0.05, np.zeros(3, int)) == (None, None)


def test_paired_t_test_over_groups_worked_by_hand() -> None:
    # 1, 3 of one document, 2, 6 of another: mean 3, sums of deviations -2 and 2, SE^2 = 2/1 (4 + 4) / 16 = 1, so t = 3.
    # With 1 degree P(|T| > 3) = 1 - 2 atan(3) / pi = 0.2048.
    p, low, high = paired_t_test(np.array([2.0, 3.0, 5.0, 6.0]), np.array([1.0, 0.0, 3.0, 0.0]), 0.05, np.array([0, 0, 1, 1]))
    assert p == pytest.approx(1 - 2 * math.atan(3) / math.pi)
    assert low == pytest.approx(3 - math.tan(0.475 * math.pi)) and high == pytest.approx(3 + math.tan(0.475 * math.pi))


def test_holm_worked_by_hand() -> None:
    # Sorted: .01 * 4 = .04, .02 * 3 = .06, .03 * 2 = .06, .6 * 1 = .6.
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.9, 0.5]) == [1.0, 1.0]  # .5 * 2 = 1, and .9 may not fall below it
    assert holm([0.9, 0.8]) == [1.0, 1.0]  # .8 * 2 is no probability
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_holm_rejects_what_the_step_down_procedure_rejects(seed: int) -> None:
    rng = random.Random(seed)
    p_values = [rng.random() ** 8 for _ in range(12)]
    rejected: set[int] = set()
    for step, place in enumerate(sorted(range(12), key=lambda i: p_values[i])):
        if p_values[place] > 0.05 / (12 - step):
            break
        rejected.add(place)
    assert {place for place, p in enumerate(holm(p_values)) if p <= 0.05} == rejected
    assert rejected
