"""Power, least differences, and effect sizes: published tables, SciPy's noncentral t, simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.core.statistics.clusters import mean_over_groups
from tasks.core.statistics.power import (
    MOST,
    WANTED,
    d_interval,
    detectable,
    effect,
    noncentral_t,
    power,
    power_warning,
    smallest_count,
)


@pytest.mark.parametrize(("d", "target", "queries"), [(0.2, 0.8, 199), (0.5, 0.8, 34), (0.8, 0.8, 15), (0.5, 0.95, 54), (0.3, 0.9, 119)])
def test_queries_needed_are_those_of_g_power(d: float, target: float, queries: int) -> None:
    """Two-sided paired t-test at .05, as in G*Power's and Cohen's tables (d 0.5: 34)."""
    assert smallest_count(lambda n: power(d, n, 0.05) >= target, MOST) == queries
    assert power(d, queries, 0.05) >= target > power(d, queries - 1, 0.05)
    assert detectable(queries, 0.05, target) <= d < detectable(queries - 1, 0.05, target)


def test_the_smallest_count() -> None:
    assert [smallest_count(lambda n, at=at: n >= at, MOST) for at in (2, 3, 17, 64, 1000)] == [2, 3, 17, 64, 1000]
    assert smallest_count(lambda _: False, MOST) is None
    assert [smallest_count(lambda n: n >= 9, most) for most in (15, 16)] == [None, 9]


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 400, 5000])
@pytest.mark.parametrize("t", [-12.0, -2.5, -0.3, 0.0, 0.7, 3.0, 15.0])
def test_the_noncentral_t_is_scipys(t: float, freedom: int) -> None:
    for shift in (t - 2.0, t, t + 0.5, t + 3.0):
        expected = float(stats.nct.cdf(t, freedom, shift)) if shift else float(stats.t.cdf(t, freedom))
        if not math.isnan(expected):
            assert noncentral_t(t, freedom, shift) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.8, 0.95, 0.999])
def test_a_level_as_high_as_the_power_finds_any_difference(alpha: float) -> None:
    result = effect(np.array([0.1, 0.3, -0.2, 0.4]), alpha)
    assert result
    assert (result.detectable, result.needed) == (0.0, 2)
    assert result.power >= alpha


def test_power_is_how_often_drawn_samples_are_significant() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(0.3, 1.0, (20_000, 50))
    share = float((stats.ttest_1samp(samples, 0.0, axis=1).pvalue <= 0.05).mean())
    assert power(0.3, 50, 0.05) == pytest.approx(share, abs=0.015)
    assert power(0.0, 50, 0.05) == pytest.approx(0.05)
    assert power(-0.3, 50, 0.05) == pytest.approx(power(0.3, 50, 0.05))


FEWEST = 1 / (0.8**2 + 0.2**2)  # effective queries of two groups, of which one has as many queries as a test allows


@pytest.mark.parametrize(
    ("d", "queries"),
    [(0.2, 60), (-1.1, 12), (0.0, 9), (8.0, 200), (100.0, 3), (5.0, 2), (-40.0, 2), (0.01, 100_000), (0.2, FEWEST), (-3.0, FEWEST)],
)
@pytest.mark.parametrize("alpha", [0.05, 0.002, 1e-6])
def test_the_interval_of_d_leaves_its_share_on_either_side(d: float, queries: float, alpha: float) -> None:
    low, high = d_interval(d, queries, alpha)
    root = math.sqrt(queries)
    assert low < d < high
    assert noncentral_t(d * root, queries - 1, low * root) == pytest.approx(1 - alpha / 2, abs=1e-9)
    assert noncentral_t(d * root, queries - 1, high * root) == pytest.approx(alpha / 2, abs=1e-9)
    assert d_interval(-d, queries, alpha) == pytest.approx((-high, -low), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("freedom", [FEWEST - 1, 1.0, 1.5, 8.0])
def test_noncentral_t_with_few_degrees_of_freedom_is_how_often_draws_are_below(freedom: float) -> None:
    rng = np.random.default_rng(3)
    normal, spread = rng.normal(size=200_000), np.sqrt(rng.chisquare(freedom, 200_000) / freedom)
    for t, shift in [(0.3, 1.0), (2.0, 1.0), (-1.0, 0.5), (30.0, 4.0)]:
        assert noncentral_t(t, freedom, shift) == pytest.approx(float((normal + shift <= t * spread).mean()), abs=0.005)


def test_the_interval_of_d_covers_the_true_effect() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(0.5, 1.0, (600, 20))
    intervals = [d_interval(float(row.mean() / row.std(ddof=1)), 20, 0.1) for row in samples]
    assert np.mean([low <= 0.5 <= high for low, high in intervals]) == pytest.approx(0.9, abs=0.04)


def test_an_effect_worked_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard deviation 1, so d = 2.
    result = effect(np.array([1.0, 2.0, 3.0]), 0.05)
    assert result
    assert result.d == pytest.approx(2.0)
    assert result.power == pytest.approx(power(2.0, 3, 0.05))
    assert result.detectable == pytest.approx(detectable(3, 0.05))
    assert effect(np.array([1.0, 2.0, 3.0]) / 50, 0.05).detectable == pytest.approx(detectable(3, 0.05) / 50)  # type: ignore[union-attr]
    smallest = effect(np.array([1.0, 2.0]), 0.05)
    assert smallest and smallest.d == pytest.approx(1.5 / math.sqrt(0.5))
    assert effect(np.array([0.5, 0.5]), 0.05) is None
    assert effect(np.array([0.5]), 0.05) is None
    assert effect(np.array([0.1 + 0.3, 0.7 + 0.3]) - np.array([0.1, 0.7]), 0.05) is None, "equal but for rounding"


def test_an_effect_over_groups_is_tested_by_one_value_per_group() -> None:
    rng = np.random.default_rng(4)
    numbers, values = np.repeat(np.arange(30), 3), np.repeat(rng.normal(0.2, 1, 30), 3)  # three queries that say the same
    grouped, alone = effect(values, 0.05, numbers), effect(values[::3], 0.05)
    assert grouped and alone and alone.needed
    assert (grouped.power, grouped.detectable) == (pytest.approx(alone.power), pytest.approx(alone.detectable))
    scale = values[::3].std(ddof=1) / values.std(ddof=1)
    assert grouped.d == pytest.approx(values.mean() / values.std(ddof=1)) == pytest.approx(alone.d * scale), "of single differences"
    assert (grouped.d_low, grouped.d_high) == pytest.approx((alone.d_low * scale, alone.d_high * scale))
    assert grouped.needed == 3 * alone.needed, "in queries"
    less, estimate = effect(values[:-1], 0.05, numbers[:-1]), mean_over_groups(values[:-1], numbers[:-1])
    d = estimate.mean / estimate.error / math.sqrt(estimate.effective)
    needed = smallest_count(lambda n: power(d, n, 0.05) >= WANTED, MOST)
    assert less and needed and less.needed == math.ceil(needed * 89 / estimate.effective)
    assert less.power == pytest.approx(power(d, estimate.effective, 0.05))
    assert effect(np.ones(4), 0.05, np.array([0, 0, 1, 1])) is None


def test_too_few_queries_are_told_in_a_sentence() -> None:
    rng = np.random.default_rng(3)
    differences = rng.normal(0.0, 1.0, 60)
    differences = 0.02 + 0.15 * (differences - differences.mean()) / differences.std(ddof=1)  # d = .1333
    assert power_warning("dev", 60, 0.02, effect(differences, 0.05)) == (
        "dev: 60 queries show a difference of 0.0200 with 17% power; 444 are needed for 80%"
    )
    assert stats.nct.sf(stats.t.ppf(0.975, 59), 59, 0.02 / 0.15 * math.sqrt(60)) == pytest.approx(0.17, abs=0.005)
    assert power_warning("dev", 60, 0.2, effect(differences + 0.18, 0.05)) == "", "power enough"
    assert power_warning("dev", 60, 0.0, None) == ""
