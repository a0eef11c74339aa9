"""The bound of a t-test over groups of queries: against scipy, by hand, and how often it errs where models are nearly alike."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.promotion import betting
from flows.promotion.groups import Draws, chance_of_none, draws, lower_bound, t_bound, unseen_bound
from flows.promotion.vetoes import loss_p_value
from tasks.core.statistics.clusters import mean_over_groups


def single_draws(*values: float) -> Draws:
    """Each query a group of its own."""
    return Draws(np.array(values), np.arange(len(values)))


def test_a_case_worked_out_by_hand() -> None:
    """d = 1, 2, 3 (beyond 1, so by t alone): mean 2, s = 1, t(0.95, 2) = 2.9200 (any table), so L = 2 - 2.92 / sqrt(3) = 0.3141."""
    assert lower_bound(single_draws(1, 2, 3), 0.05) == pytest.approx(2 - 2.919986 / math.sqrt(3), abs=1e-6)
    assert lower_bound(single_draws(1, 2, 3), 0.05) == pytest.approx(0.3141, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_the_bound_decides_as_scipys_one_sided_paired_test(seed: int, margin: float) -> None:
    random = np.random.default_rng(seed)
    old = random.random(800)
    new = np.clip(old + random.normal(0.02, 0.4, 800), 0, 1)
    rejected = stats.ttest_rel(new + margin, old, alternative="greater").pvalue < 0.05
    bound = lower_bound(single_draws(*(new - old)), 0.05)
    assert (bound > -margin) == rejected
    low = stats.ttest_rel(new, old, alternative="greater").confidence_interval(0.95).low
    assert bound == pytest.approx(low, abs=1e-12)


def test_groups_worked_out_by_hand() -> None:
    """1, 3 | 2, 6: mean 3, SE 1 (tests/core/metrics), t(0.95, 1) = 6.3138."""
    seen = draws({"a": 1.0, "b": 3.0, "c": 2.0, "d": 6.0}, ["c", "a", "d", "b"], {"a": "x", "b": "x", "c": "y", "d": "y"})
    assert seen.numbers.tolist() == [0, 1, 0, 1]
    assert (seen.queries, seen.groups, seen.most) == (4, 2, 2)
    assert seen.sums.tolist() == [4.0, 2.0] and seen.sizes.tolist() == [1.0, 1.0]
    assert lower_bound(seen, 0.05) == pytest.approx(3 - 6.3138, abs=1e-4)
    assert seen.note == " in 2 groups that share relevant documents, design effect 0.9"
    uneven = draws({"a": 0.5, "b": 0.1, "c": -0.3}, ["a", "b", "c"], {"a": "x", "b": "x"})
    assert uneven.sums == pytest.approx([0.3, -0.15]) and uneven.sizes.tolist() == [1.0, 0.5]
    popular = Draws(np.append(np.zeros(1000), np.full(10, 0.5)), np.append(np.arange(1000), np.full(10, 1000)))
    assert popular.most == 1 and popular.sums[-1] == 0.5 and (popular.sizes == 1).all(), "nine of 1,010 queries do not count"
    assert Draws(np.zeros(60), np.repeat(np.arange(20), 3)).most == 3
    assert Draws(np.zeros(100), np.minimum(np.arange(100), 94)).most == 1, "five of a hundred queries are as many as may be lost"
    assert single_draws(0.5, 0.1).note == ""
    assert (single_draws(0.5, 0.1).sums == [0.5, 0.1]).all()


def test_the_bound_over_groups_of_many_sizes() -> None:
    """Half of the queries in one group count as two draws, or a few more: t with three degrees of freedom, not with fifty."""
    draw = np.random.default_rng(1)
    uneven = Draws(draw.uniform(-0.9, 0.9, 100), np.append(np.zeros(50, int), np.arange(1, 51)))
    estimate = mean_over_groups(uneven.differences, uneven.numbers)
    assert estimate.effective == pytest.approx(100**2 / (50**2 + 50)) and uneven.groups == 51
    expected = estimate.mean - stats.t.ppf(0.95, estimate.effective - 1) * estimate.error
    assert t_bound(uneven, 0.05) == pytest.approx(expected)
    assert lower_bound(uneven, 0.05) < expected, "what so few draws leave unseen counts more"
    assert lower_bound(Draws(uneven.differences * 5, uneven.numbers), 0.05) == pytest.approx(5 * expected), "beyond 1, t alone"


def test_one_group_with_nearly_all_queries_leaves_bets_alone() -> None:
    draw = np.random.default_rng(2)
    numbers = np.append(np.zeros(90, int), np.arange(1, 11))
    nearly_one = Draws(draw.uniform(0.1, 0.9, 100), numbers)
    assert not nearly_one.is_constant and nearly_one.spread == 0.0
    bet = betting.lower_bound(nearly_one.sums, 0.05, nearly_one.sizes, bets=betting.BOLD)
    assert lower_bound(nearly_one, 0.05) == bet < 0
    assert loss_p_value(Draws(-nearly_one.differences, numbers), 0.01) == 1.0, "no t-test, so no veto"
    assert lower_bound(Draws(nearly_one.differences * 5, numbers), 0.05) == -1.0, "a measure beyond 1"
    assert nearly_one.note == ", of which 90 share relevant documents", "a design effect cannot be estimated"


def test_what_equal_differences_leave_unseen() -> None:
    """20 queries, each .2 better: were the mean .0331, they would all be so by 1.0331 / 1.2 to the 20th at most, which is .05."""
    assert lower_bound(single_draws(*[0.2] * 20), 0.05) == pytest.approx(0.2 - 1.2 * (1 - 0.05 ** (1 / 20)))
    assert lower_bound(single_draws(*[0.2] * 20), 0.05) == pytest.approx(0.0331, abs=1e-4)
    assert chance_of_none(0.2, 0.0331, np.ones(20)) == pytest.approx(0.05, abs=1e-4)
    assert lower_bound(single_draws(*[0.0] * 298), 0.05) < -0.01 < lower_bound(single_draws(*[0.0] * 299), 0.05)
    rounded = np.array([0.1 + 0.2, 0.3, 0.4 + 0.2, 0.9]) - np.array([0.1, 0.1, 0.4, 0.7])
    assert len(set(rounded.tolist())) > 1
    assert lower_bound(single_draws(*rounded), 0.05) == pytest.approx(0.2 - 1.2 * (1 - 0.05 ** (1 / 4))), "equal but for rounding"
    assert lower_bound(single_draws(*[-1.0] * 5), 0.05) == -1.0
    assert lower_bound(single_draws(*[1.0] * 5), 0.05) == pytest.approx(1 - 2 * (1 - 0.05 ** (1 / 5))), "from 0 to 1 on each query"
    assert single_draws(0.2, 0.2).spread == 0.0
    assert (lower_bound(single_draws(2.0, 2.0), 0.05), lower_bound(single_draws(-5.0, -5.0), 0.05)) == (-1.0, -5.0), "a measure beyond 1"
    four = Draws(np.full(40, 0.2), np.repeat(np.arange(10), 4))
    assert lower_bound(four, 0.05) == pytest.approx(0.2 - 1.2 * (1 - 0.05 ** (1 / 10))), "ten draws"
    assert lower_bound(Draws(np.array([0.5, 0.1]), np.zeros(2, int)), 0.05) == pytest.approx(0.3 - 1.3 * 0.95), "one draw"


def test_unseen_with_groups_of_many_sizes() -> None:
    sizes = np.array([1.0, 0.5, 0.25, 0.25])
    bound = unseen_bound(0.2, sizes, 0.05)
    assert math.prod(1 + size * (0.2 - bound) / (1 + bound) for size in sizes) == pytest.approx(20)
    assert unseen_bound(0.2, np.ones(4), 0.05) > bound > -1, "small groups say less"
    assert unseen_bound(-1.0, sizes, 0.05) == -1.0


@pytest.mark.parametrize("groups", [30, 600])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_many_groups_of_many_sizes_have_a_bound(groups: int, spread: float) -> None:
    """The chance that none of so many differs, where the mean is near -1, is too small for a number."""
    draw = np.random.default_rng(groups)
    numbers = np.repeat(np.arange(groups), 1 + draw.poisson(2, groups))
    seen = Draws(np.clip(0.1 + draw.normal(0, 1, len(numbers)) * spread, -1, 1), numbers)
    bound = unseen_bound(0.1, seen.sizes, 0.05)
    assert chance_of_none(0.1, bound, seen.sizes) == pytest.approx(0.05, rel=1e-6)
    assert -1 < lower_bound(seen, 0.05) < 0.1 + spread


def rare_losses(draw: np.random.Generator, queries: int, losses: float, *, size: float, noise: float, mean: float) -> np.ndarray:
    """Nearly alike but for a few losses, with that mean exactly."""
    share = losses / queries
    values = np.where(draw.random((1000, queries)) < share, -size, (mean + size * share) / (1 - share))
    return np.clip(values, -1 + noise, 1 - noise) + noise * draw.choice([-1, 1], values.shape)


@pytest.mark.parametrize(
    ("queries", "losses", "size", "noise"), [(30, 1, 0.5, 0), (100, 2, 0.9, 0.02), (300, 3, 0.98, 0.02), (300, 13, 1, 0)]
)
def test_rare_losses_are_let_pass_no_more_often_than_alpha(queries: int, losses: float, size: float, noise: float) -> None:
    """Where today's t-test alone lets up to 38% pass."""
    values = rare_losses(np.random.default_rng(7), queries, losses, size=size, noise=noise, mean=-0.01)
    bounds = [lower_bound(single_draws(*row), 0.05) for row in values[:400]]
    assert sum(bound >= -0.01 for bound in bounds) <= 20 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_ordinary_differences_are_left_to_the_t_test() -> None:
    values = np.clip(np.random.default_rng(2).normal(0, 0.25, 500), -1, 1)
    half = stats.t.ppf(0.95, 499) * values.std(ddof=1) / math.sqrt(500)
    assert lower_bound(single_draws(*values), 0.05) == pytest.approx(values.mean() - half)
    small = values / 10
    assert lower_bound(single_draws(*small), 0.05) == betting.lower_bound(small, 0.05, bets=betting.BOLD) < small.mean() - half / 10
