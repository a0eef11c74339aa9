"""Rule `guaranteed`: verdicts on values by query alone."""

from typing import Any

import numpy as np
import pytest

from flows.promotion import betting
from flows.promotion.guaranteed import MOST, in_order
from flows.promotion.rule import Evidence, Promotion, Verdict, decide
from tasks.core.metrics.confirmation import chooses, confirming
from tasks.core.stage.errors import UserError

NAMES = [f"q{number}" for number in range(1500)]
DRAW = np.random.default_rng(11)
OLD = dict(zip(NAMES, DRAW.uniform(0.3, 0.6, 1500).tolist(), strict=True))
LUCK = dict(zip(NAMES, DRAW.normal(0, 0.2, 1500).clip(-0.6, 0.6).tolist(), strict=True))
NOISE = {query: value - float(np.mean([LUCK[one] for one in confirming(NAMES)])) for query, value in LUCK.items()}


def better(gain: float, values: dict[str, float] = OLD) -> dict[str, float]:
    return {query: value + gain + NOISE[query] for query, value in values.items()}


def verdict(new: dict[str, float], old: dict[int, dict[str, float]] | None = None, *, rule: Any = (), **more: Any) -> Verdict:
    return decide(Evidence(new, old or {1: OLD}, **more), "m", Promotion(**dict(rule)))


def test_what_chose_has_no_say() -> None:
    flattered = {query: value + (0.4 if chooses(query) else 0.0) + NOISE[query] for query, value in OLD.items()}
    found = verdict(flattered)
    assert not found.promoted
    assert abs(found.difference) < 0.01, "though it is .08 better over all of dev"
    assert (found.queries, found.dev) == (len(confirming(NAMES)), 1500)
    only = {query: value + (0.0 if chooses(query) else 0.03) + NOISE[query] for query, value in OLD.items()}
    assert verdict(only).promoted


def test_the_figures_and_the_reason() -> None:
    found = verdict(better(0.03))
    order = confirming(NAMES)
    differences = np.array([better(0.03)[query] - OLD[query] for query in order])
    assert found.promoted
    assert (found.difference, found.spread) == (pytest.approx(differences.mean()), pytest.approx(differences.std(ddof=1)))
    assert found.bound == pytest.approx(betting.lower_bound(differences, 0.05 / 52)) and found.bound > 0
    assert (found.level, found.beaten, found.against) == (0.05 / 52, [1], {"1": {"difference": found.difference, "bound": found.bound}})
    assert found.new - found.old == pytest.approx(found.difference)
    assert found.reason == (
        f"m {found.difference:+.4f} (lower bound {found.bound:+.4f}) on dev is > -0.0100; better than champion/1 "
        f"(guaranteed: {len(order)} of 1500 dev queries, 0 of them new)"
    )
    same = verdict(better(0.0))
    assert not same.promoted and "is not > -0.0100" in same.reason


def test_every_champion_that_stands_must_be_met() -> None:
    champion = {query: value - 0.05 for query, value in OLD.items()}  # small losses have added up since champion/1
    assert verdict(better(0.0, champion), {2: champion}, rule={"margin": 0.02}).promoted
    found = verdict(better(0.0, champion), {2: champion, 1: OLD}, rule={"margin": 0.02})
    assert not found.promoted
    assert "; against champion/1 -0.0" in found.reason and found.reason.count("is not > -0.0200") == 1


def test_better_is_said_of_the_oldest_first() -> None:
    higher = {query: value + 0.05 for query, value in OLD.items()}
    new = better(0.03)
    rule = {"margin": 0.1}
    assert verdict(new, {3: OLD, 2: OLD, 1: OLD}, rule=rule).beaten == [1, 2, 3]
    assert verdict(new, {3: OLD, 2: higher, 1: OLD}, rule=rule).beaten == [1]
    assert verdict(new, {3: OLD, 2: OLD, 1: higher}, rule=rule).beaten == [], "not better than the oldest, so of none"


def test_champions_that_none_beat_do_not_pile_up() -> None:
    rule = {"margin": 0.05}
    equal = dict.fromkeys(range(MOST, 0, -1), OLD)
    found = verdict(better(0.0), equal, rule=rule)
    assert not found.promoted
    assert f"; better than none of the {MOST} champions that none was shown to beat" in found.reason
    assert verdict(better(0.0), {2: OLD, 1: OLD}, rule=rule).promoted
    assert verdict(better(0.03), equal, rule=rule).promoted


def test_new_queries_come_first_and_suffice() -> None:
    fresh = set(NAMES[:700])
    order = in_order(NAMES, fresh)
    count = sum(not chooses(query) for query in fresh)
    assert set(order[:count]) == fresh & set(confirming(NAMES))
    assert order[count:] == [query for query in confirming(NAMES) if query not in fresh]
    new = {query: OLD[query] + (0.2 if query in fresh else -0.1) + NOISE[query] for query in NAMES}
    assert verdict(new, fresh=fresh).promoted, "won on the new ones, as long as all in all it is no loss"
    assert f"{count} of them new" in verdict(new, fresh=fresh).reason
    assert not verdict({query: OLD[query] + (0.03 if query in fresh else -0.2) for query in NAMES}, fresh=fresh).promoted


def test_systems_tried_on_all_of_dev_cost() -> None:
    found, tried = verdict(better(0.03)), verdict(better(0.03), looks=28)
    assert tried.level == found.level / 28
    assert tried.bound < found.bound
    assert "of them new, 28 systems tried on them)" in tried.reason


def test_a_group_that_loses_vetoes() -> None:
    group = NAMES[:80]
    new = better(0.06) | {query: OLD[query] - 0.2 + NOISE[query] for query in group}
    found = verdict(new, slices={"question word how": group, "question word who": NAMES[80:400]})
    assert not found.promoted
    assert [veto.group for veto in found.vetoes] == ["question word how"]
    assert "is > -0.0100; vetoed by question word how: -0.2" in found.reason
    assert "better than" not in found.reason
    assert verdict(new, slices={"question word how": group}, rule={"veto_rate": 0}).promoted


def test_refusals() -> None:
    few = {"q0": 0.5, "q1": 0.5}
    assert not verdict(few, {1: few}).promoted, "two queries show nothing"
    chosen = next(query for query in NAMES if chooses(query))
    with pytest.raises(UserError, match="none of 1 judged queries is left to confirm"):
        verdict({chosen: 0.5}, {1: {chosen: 0.5}})
    many = dict.fromkeys(NAMES, 3.0)
    with pytest.raises(UserError, match=r"promotion.metric: found a difference of 2.[4-7]\d*, expected differences in \[-1, 1\]; choose"):
        verdict(many)
    with pytest.raises(UserError, match="measured on different queries"):
        verdict(better(0.1), {2: OLD, 1: few})
