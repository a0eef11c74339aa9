"""Bets on a mean: against a plain loop, a case worked out by hand, and how often they err."""

import math
import random

import numpy as np
import pytest

from flows.promotion.betting import BOLD, STEADY, Bets, log_capital, lower_bound, shows_more


def reference_capital(differences: list[float], c: float, alpha: float, sizes: list[float] | None = None, bets: Bets = STEADY) -> float:
    """The same in numbers one by one, written from the formulas; the capital itself."""
    capital, seen = 1.0, []
    centred = bets.variance  # v_0, then the sum of squares
    for place, d in enumerate(differences):
        variance = centred / (len(seen) + 1)
        bet = 0.0
        if capital < 1 / alpha:
            bet = min(math.sqrt(2 * math.log(1 / (alpha * capital)) / ((len(differences) - place) * variance)), bets.most / (1 + c))
        capital *= 1 + bet * (d - (sizes[place] if sizes else 1) * c)
        seen.append(d)
        centred += (d - sum(seen) / (len(seen) + 1)) ** 2
    return capital


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("c", [-0.9, -0.01, 0.0, 0.3])
def test_the_capital_is_that_of_a_plain_loop(seed: int, c: float) -> None:
    draw = random.Random(seed)
    differences = [draw.choice([0.0, 0.0, draw.uniform(-1, 1), 1.0, 0.37]) for _ in range(draw.randint(1, 60))]
    capital = float(log_capital(np.array(differences), c, 0.02))
    assert math.exp(capital) == pytest.approx(reference_capital(differences, c, 0.02), rel=1e-9)
    bold = float(log_capital(np.array(differences), c, 0.02, bets=BOLD))
    assert math.exp(bold) == pytest.approx(reference_capital(differences, c, 0.02, bets=BOLD), rel=1e-9)


@pytest.mark.parametrize("c", [-0.9, -0.01, 0.3])
def test_groups_of_several_sizes_are_as_in_a_plain_loop(c: float) -> None:
    draw = np.random.default_rng(4)
    sizes = draw.integers(1, 5, 50) / 4
    sums = sizes * draw.uniform(-0.6, 1, 50)
    assert math.exp(float(log_capital(sums, c, 0.02, sizes=sizes))) == pytest.approx(
        reference_capital(sums.tolist(), c, 0.02, sizes.tolist()), rel=1e-9
    )
    assert (log_capital(sums, c, 0.02, sizes=np.ones(50)) == log_capital(sums, c, 0.02)).all()
    assert lower_bound(sums, 0.05, sizes) <= sums.sum() / sizes.sum()
    assert shows_more(sums, lower_bound(sums, 0.05, sizes) - 2e-5, 0.05, sizes=sizes)
    gains = np.ones(200)
    assert lower_bound(gains / 2, 0.05, gains / 2) > 0.9, "groups half as large, which gain 1 on each query"


def test_a_case_worked_out_by_hand() -> None:
    """d = 1, 1, c = 0, alpha = 1/2: b_1 = sqrt(2 log 2 / (2 * 1)) = 0.8326, limited to 0.75, so K_1 = 1.75. m_1 = 1/2,
    v_1 = (1 + 1/4) / 2 = 0.625, b_2 = sqrt(2 log(2 / 1.75) / 0.625) = 0.6537, so K_2 = 1.75 * 1.6537 = 2.894 >= 2: rejected at 1/2,
    and not at 1/20."""
    assert math.exp(float(log_capital(np.ones(2), 0.0, 0.5))) == pytest.approx(2.894, abs=1e-3)
    assert shows_more(np.ones(2), 0.0, 0.5)
    assert not shows_more(np.ones(2), 0.0, 0.05)
    assert math.exp(float(log_capital(np.ones(2), 0.0, 0.05))) == pytest.approx(1.75**2), "both bets limited"


def test_many_sequences_and_many_c_at_once_are_as_one_by_one() -> None:
    draw = np.random.default_rng(0)
    differences, points = draw.uniform(-0.6, 1, (7, 40)), np.array([[-0.2], [0.0], [0.1]])
    capitals = log_capital(differences, points, 0.1)
    assert capitals.shape == (3, 7)
    for row, c in enumerate(points[:, 0]):
        for column, sequence in enumerate(differences):
            assert capitals[row, column] == pytest.approx(float(log_capital(sequence, float(c), 0.1)))


@pytest.mark.parametrize("bets", [STEADY, BOLD])
@pytest.mark.parametrize("kind", ["steps", "rare", "normal"])
def test_it_errs_less_often_than_alpha(kind: str, bets: Bets) -> None:
    """Differences of mean exactly c: the chance of a rejection is at most alpha, for skewed ones as well."""
    draw = np.random.default_rng(5)
    shape = (4000, 300)
    differences = {
        "steps": lambda: draw.choice([-1.0, -0.37, 0.0, 0.37, 1.0], shape, p=[0.05, 0.1, 0.7, 0.1, 0.05]),
        "rare": lambda: np.where(draw.random(shape) < 0.01, 0.99, -0.01),
        "normal": lambda: np.clip(draw.normal(0, 0.25, shape), -1, 1),
    }[kind]()
    for sign in (1, -1):
        errors = int(shows_more(sign * differences, 0.0, 0.05, bets=bets).sum())
        assert errors <= 200 + 3 * math.sqrt(4000 * 0.05 * 0.95)
    assert kind == "rare" or errors > 40, "nor is it far below: the bets are not timid"


def test_the_bound_is_where_rejection_ends() -> None:
    draw = np.random.default_rng(2)
    differences = np.clip(draw.normal(0.1, 0.25, 500), -1, 1)
    bound = lower_bound(differences, 0.01)
    assert shows_more(differences, bound - 2e-5, 0.01)
    assert not shows_more(differences, bound + 2e-5, 0.01)
    exact = differences.mean() - 2.33 * differences.std() / math.sqrt(500)
    assert exact - 0.015 < bound < exact + 0.003, "not far from the bound for normal means"
    assert lower_bound(-np.ones(3), 0.01) == -1
    assert lower_bound(np.array([]), 0.01) == -1
    assert lower_bound(np.full(400, 0.2), 0.01) == pytest.approx(0.2, abs=0.02)
    early = np.concatenate([np.ones(40), np.full(160, -0.5)])  # won at once, and lost afterwards
    assert log_capital(early, -0.1, 0.05) >= math.log(20)
    assert not shows_more(early, np.array([-0.1, early.mean()]), 0.05).any(), "nobody would understand it"
    assert lower_bound(early, 0.05) <= early.mean()
    with pytest.raises(ValueError, match=r"found a difference of 1\.5"):
        lower_bound(np.array([0.1, 1.5]), 0.05)
