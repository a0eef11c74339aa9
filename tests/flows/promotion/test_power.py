"""What is said before training: against the tests themselves by simulation, and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.promotion.betting import shows_more
from flows.promotion.power import chance, foresee, least
from flows.promotion.rule import Promotion

GUARANTEED, NOT_WORSE = Promotion(), Promotion(rule="not_worse")


@pytest.mark.parametrize(("gain", "queries"), [(0.02, 800), (0.0, 800), (0.02, 2000), (0.05, 200)])
def test_the_chance_of_a_promotion_is_what_the_bets_win(gain: float, queries: int) -> None:
    draw = np.random.default_rng(1)
    differences = np.clip(draw.normal(gain, 0.25, (1500, queries)), -1, 1)
    found = float(shows_more(differences, -GUARANTEED.margin, GUARANTEED.alpha / GUARANTEED.comparisons).mean())
    assert chance(gain, queries, spread=0.25, rule=GUARANTEED) == pytest.approx(found, abs=0.05)


def test_more_systems_tried_leave_less() -> None:
    assert chance(0.02, 800, spread=0.25, rule=GUARANTEED, looks=28) < chance(0.02, 800, spread=0.25, rule=GUARANTEED) - 0.15


def test_the_chance_under_a_t_test_by_hand() -> None:
    """n 1,000, s .25: SE .0079; not_worse needs a mean of 1.645 SE - .01 = +.0030, which an equal model reaches with P(Z > .38) = 35 %."""
    assert chance(0.0, 1000, spread=0.25, rule=NOT_WORSE) == pytest.approx(stats.norm.sf(0.38), abs=0.005)
    assert chance(-0.005, 1000, spread=0.25, rule=NOT_WORSE) == pytest.approx(0.156, abs=0.005)
    assert chance(0.0, 1000, spread=0.25, rule=Promotion(rule="better")) == pytest.approx(0.05)


def test_the_line() -> None:
    last = {"spread": 0.25, "queries": 720, "dev": 900, "rule": "guaranteed"}
    line = foresee(last, GUARANTEED, "m")
    now, needed = chance(0.02, 720, spread=0.25, rule=GUARANTEED), least(lambda n: chance(0.02, n, spread=0.25, rule=GUARANTEED) >= 0.9)
    assert needed
    assert line.startswith("promotion (guaranteed): with 900 dev queries (720 confirm) and the last comparison's spread of 0.250")
    assert f"a gain of 0.02 is promoted with about {now:.0%}".replace("%", " %") in line
    assert line.endswith(f"; about {math.ceil(needed / 0.8):,} dev queries are needed to promote that gain with 90 %")
    assert "with 900 dev queries and" in foresee(last, NOT_WORSE, "m"), "the rule was changed: all of dev counts"
    assert foresee({}, GUARANTEED, "m") == foresee({"spread": 0.0, "queries": 20}, GUARANTEED, "m") == ""
    assert foresee({"reason": "of an older version"}, GUARANTEED, "m") == ""
    assert foresee(last | {"measure": "m"}, GUARANTEED, "m") == line
    assert foresee(last | {"measure": "other"}, GUARANTEED, "m") == "", "the spread of another measure says nothing"


def test_least() -> None:
    assert [least(lambda n, at=at: n >= at) for at in (2, 3, 17, 64, 1000)] == [2, 3, 17, 64, 1000]
    assert least(lambda _: False) is None
