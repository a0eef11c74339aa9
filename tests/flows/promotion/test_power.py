"""What is said before training: against the tests themselves by simulation, and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.promotion.betting import BOLD, shows_more
from flows.promotion.power import MOST, foresee, pass_chance
from flows.promotion.records import Promotion
from tasks.core.statistics.power import smallest_count

GUARANTEED, NOT_WORSE = Promotion(), Promotion(rule="not_worse")


@pytest.mark.parametrize(("gain", "queries"), [(0.02, 800), (0.0, 800), (0.02, 2000), (0.05, 200)])
def test_the_chance_of_a_promotion_is_what_the_bets_win(gain: float, queries: int) -> None:
    draw = np.random.default_rng(1)
    differences = np.clip(draw.normal(gain, 0.25, (1500, queries)), -1, 1)
    simulated = float(shows_more(differences, -GUARANTEED.margin, GUARANTEED.alpha / GUARANTEED.comparisons).mean())
    assert pass_chance(gain, queries, spread=0.25, rule=GUARANTEED) == pytest.approx(simulated, abs=0.05)


def test_more_systems_tried_leave_less() -> None:
    assert pass_chance(0.02, 800, spread=0.25, rule=GUARANTEED, looks=28) < pass_chance(0.02, 800, spread=0.25, rule=GUARANTEED) - 0.15


def test_groups_of_many_sizes_leave_less() -> None:
    """The largest twice as large as they are on average: bets are half as large at most."""
    draw, sizes = np.random.default_rng(1), np.tile([1.0, 0.25, 0.25], 60)
    sums = sizes * np.clip(draw.normal(0.1, 0.25, (1500, 180)), -1, 1)
    spread = math.sqrt((sizes**2).mean()) * 0.25 / sizes.mean()
    level = GUARANTEED.alpha / GUARANTEED.comparisons
    simulated = float(shows_more(sums, -GUARANTEED.margin, level, sizes=sizes).mean())
    assert pass_chance(0.1, 180, spread=spread, rule=GUARANTEED, uneven=2.0) == pytest.approx(simulated, abs=0.08)
    assert 0.1 < simulated < 0.9


def test_models_nearly_alike_need_bets_under_a_t_test_too() -> None:
    draw = np.random.default_rng(1)
    values = np.clip(draw.normal(0.0, 0.1, (1500, 500)), -1, 1)
    half = stats.t.ppf(0.95, 499) * values.std(axis=1, ddof=1) / math.sqrt(500)
    simulated = float((shows_more(values, -0.01, 0.05, bets=BOLD) & (values.mean(axis=1) - half >= -0.01)).mean())
    assert pass_chance(0.0, 500, spread=0.1, rule=NOT_WORSE) == pytest.approx(simulated, abs=0.05)


def test_the_chance_under_a_t_test_by_hand() -> None:
    """n 1,000, s .25: SE .0079; not_worse needs a mean of 1.645 SE - .01 = +.0030, which an equal model reaches with P(Z > .38) = 35%."""
    assert pass_chance(0.0, 1000, spread=0.25, rule=NOT_WORSE) == pytest.approx(stats.norm.sf(0.38), abs=0.005)
    assert pass_chance(-0.005, 1000, spread=0.25, rule=NOT_WORSE) == pytest.approx(0.156, abs=0.005)
    assert pass_chance(0.0, 1000, spread=0.25, rule=Promotion(rule="better")) == pytest.approx(0.05)


def test_the_line() -> None:
    last = {"spread": 0.25, "queries": 720, "dev": 900, "rule": "guaranteed"}
    line = foresee(last, GUARANTEED, "m")
    chance = pass_chance(0.02, 720, spread=0.25, rule=GUARANTEED)
    needed = smallest_count(lambda n: pass_chance(0.02, n, spread=0.25, rule=GUARANTEED) >= 0.9, MOST)
    assert needed
    assert line.startswith("promotion (guaranteed): with 900 dev queries (720 confirm) and the last comparison's spread of 0.250")
    assert f"a gain of 0.02 is promoted with a chance of about {chance:.0%}" in line
    assert line.endswith(f"; about {math.ceil(needed / 0.8):,} dev queries are needed to promote that gain with a chance of 90%")
    assert "with 900 dev queries and" in foresee(last, NOT_WORSE, "m"), "the rule was changed: all of dev counts"
    assert "with 10 dev queries (9 confirm)" in foresee(last | {"queries": 9, "dev": 10}, GUARANTEED, "m"), (
        "as they are, not as they may be"
    )
    shared = foresee(last | {"groups": 144, "most": 10}, GUARANTEED, "m")
    assert "with 900 dev queries (720 confirm) in groups of 5.0 that share relevant documents and" in shared
    fewer = pass_chance(0.02, 144, spread=0.25, rule=GUARANTEED, uneven=2.0)
    assert f"a gain of 0.02 is promoted with a chance of about {fewer:.0%}" in shared
    assert foresee({}, GUARANTEED, "m") == foresee({"spread": 0.0, "queries": 20}, GUARANTEED, "m") == ""
    assert foresee({"reason": "of an older version"}, GUARANTEED, "m") == ""
    assert foresee(last | {"measure": "m"}, GUARANTEED, "m") == line
    assert foresee(last | {"measure": "other"}, GUARANTEED, "m") == "", "the spread of another measure says nothing"
