"""Rule `guaranteed`: verdicts on values by query alone."""

from typing import Any

import numpy as np
import pytest

from flows.promotion import betting
from flows.promotion.guaranteed import MOST, order_queries
from flows.promotion.records import Evidence, Promotion, Verdict
from flows.promotion.rule import decide
from tasks.core.errors import UserError
from tasks.core.statistics.clusters import connected
from tasks.core.statistics.confirmation import confirmation_queries, is_selection_query

NAMES = [f"q{number}" for number in range(1500)]
DRAW = np.random.default_rng(11)
OLD = dict(zip(NAMES, DRAW.uniform(0.3, 0.6, 1500).tolist(), strict=True))
LUCK = dict(zip(NAMES, DRAW.normal(0, 0.2, 1500).clip(-0.6, 0.6).tolist(), strict=True))
NOISE = {query: value - float(np.mean([LUCK[one] for one in confirmation_queries(NAMES, {})])) for query, value in LUCK.items()}


def with_gain(gain: float, values: dict[str, float] = OLD) -> dict[str, float]:
    return {query: value + gain + NOISE[query] for query, value in values.items()}


def verdict(new: dict[str, float], old: dict[int, dict[str, float]] | None = None, *, rule: Any = (), **evidence: Any) -> Verdict:
    return decide(Evidence(new, old or {1: OLD}, **evidence), "m", Promotion(**dict(rule)))


def test_what_chose_has_no_say() -> None:
    flattered = {query: value + (0.4 if is_selection_query(query, {}) else 0.0) + NOISE[query] for query, value in OLD.items()}
    outcome = verdict(flattered)
    assert not outcome.promoted
    assert abs(outcome.difference) < 0.01, "though it is .08 better over all of dev"
    assert (outcome.queries, outcome.dev) == (len(confirmation_queries(NAMES, {})), 1500)
    confirmed = {query: value + (0.0 if is_selection_query(query, {}) else 0.03) + NOISE[query] for query, value in OLD.items()}
    assert verdict(confirmed).promoted


def test_the_figures_and_the_reason() -> None:
    outcome = verdict(with_gain(0.03))
    order = confirmation_queries(NAMES, {})
    differences = np.array([with_gain(0.03)[query] - OLD[query] for query in order])
    assert outcome.promoted
    assert (outcome.difference, outcome.spread) == (pytest.approx(differences.mean()), pytest.approx(differences.std(ddof=1)))
    assert outcome.bound == pytest.approx(betting.lower_bound(differences, 0.05 / 52)) and outcome.bound > 0
    assert (outcome.level, outcome.beaten, outcome.against) == (
        0.05 / 52,
        [1],
        {"1": {"difference": outcome.difference, "bound": outcome.bound}},
    )
    assert outcome.new - outcome.old == pytest.approx(outcome.difference)
    assert outcome.reason == (
        f"m {outcome.difference:+.4f} (lower bound {outcome.bound:+.4f}) on dev is > -0.0100; better than champion/1 "
        f"(guaranteed: {len(order)} of 1500 dev queries, 0 of them new)"
    )
    worse = verdict(with_gain(-0.02))
    assert worse.bound == pytest.approx(betting.lower_bound(differences - 0.05, 0.05 / 52)) and worse.bound < worse.difference < 0
    same = verdict(with_gain(0.0))
    assert not same.promoted and "is not > -0.0100" in same.reason


def test_every_champion_that_stands_must_be_met() -> None:
    champion = {query: value - 0.05 for query, value in OLD.items()}  # small losses have added up since champion/1
    assert verdict(with_gain(0.0, champion), {2: champion}, rule={"margin": 0.02}).promoted
    outcome = verdict(with_gain(0.0, champion), {2: champion, 1: OLD}, rule={"margin": 0.02})
    assert not outcome.promoted
    assert "; against champion/1 -0.0" in outcome.reason and outcome.reason.count("is not > -0.0200") == 1


def test_better_is_said_of_the_oldest_first() -> None:
    higher = {query: value + 0.05 for query, value in OLD.items()}
    new = with_gain(0.03)
    rule = {"margin": 0.1}
    assert verdict(new, {3: OLD, 2: OLD, 1: OLD}, rule=rule).beaten == [1, 2, 3]
    assert verdict(new, {3: OLD, 2: higher, 1: OLD}, rule=rule).beaten == [1]
    assert verdict(new, {3: OLD, 2: OLD, 1: higher}, rule=rule).beaten == [], "not better than the oldest, so of none"


def test_champions_that_none_beat_do_not_pile_up() -> None:
    rule = {"margin": 0.05}
    equal = dict.fromkeys(range(MOST, 0, -1), OLD)
    outcome = verdict(with_gain(0.0), equal, rule=rule)
    assert not outcome.promoted
    assert f"; better than none of the {MOST} unbeaten champions" in outcome.reason
    assert verdict(with_gain(0.0), {2: OLD, 1: OLD}, rule=rule).promoted
    assert verdict(with_gain(0.03), equal, rule=rule).promoted


def test_new_queries_come_first_and_suffice() -> None:
    fresh = set(NAMES[:700])
    order = order_queries(NAMES, fresh)
    count = sum(not is_selection_query(query, {}) for query in fresh)
    assert set(order[:count]) == fresh & set(confirmation_queries(NAMES, {}))
    assert order[count:] == [query for query in confirmation_queries(NAMES, {}) if query not in fresh]
    new = {query: OLD[query] + (0.2 if query in fresh else -0.1) + NOISE[query] for query in NAMES}
    assert verdict(new, fresh=fresh).promoted, "won on the new ones, as long as all in all it is no loss"
    assert f"{count} of them new" in verdict(new, fresh=fresh).reason
    assert not verdict({query: OLD[query] + (0.03 if query in fresh else -0.2) for query in NAMES}, fresh=fresh).promoted


def test_systems_tried_on_all_of_dev_cost() -> None:
    alone, tried = verdict(with_gain(0.03)), verdict(with_gain(0.03), looks=28)
    assert tried.level == alone.level / 28
    assert tried.bound < alone.bound
    assert "of them new, 28 systems tried on them)" in tried.reason


def test_a_group_that_loses_vetoes() -> None:
    group = NAMES[:80]
    new = with_gain(0.06) | {query: OLD[query] - 0.2 + NOISE[query] for query in group}
    outcome = verdict(new, slices={"question word how": group, "question word who": NAMES[80:400]})
    assert not outcome.promoted
    assert [veto.group for veto in outcome.vetoes] == ["question word how"]
    assert "is > -0.0100; vetoed by question word how: -0.2" in outcome.reason
    assert "better than" not in outcome.reason
    assert verdict(new, slices={"question word how": group}, rule={"veto_rate": 0}).promoted


def test_queries_of_their_own_documents_give_the_same_figures() -> None:
    for gain in (0.0, 0.02, 0.03):
        assert verdict(with_gain(gain), groups={query: query for query in NAMES}) == verdict(with_gain(gain))
    outcome = verdict(with_gain(0.02))
    assert (outcome.groups, outcome.most) == (outcome.queries, 1)


def test_a_group_is_one_bet_in_the_order_of_its_first_query() -> None:
    groups = {query: f"d{number % 300 if number < 1470 else 0}" for number, query in enumerate(NAMES)}
    outcome, order = verdict(with_gain(0.04), groups=groups), confirmation_queries(NAMES, groups)
    sums: dict[str, list[float]] = {}
    for query in order:
        sums.setdefault(groups[query], []).append(with_gain(0.04)[query] - OLD[query])
    most = next(most for most in range(1, 9) if sum(max(0, len(gains) - most) for gains in sums.values()) <= 0.05 * len(order))
    assert most < max(map(len, sums.values()))
    sizes = np.array([min(most, len(gains)) / most for gains in sums.values()])
    bets = sizes * [float(np.mean(gains)) for gains in sums.values()]
    assert outcome.bound == pytest.approx(betting.lower_bound(bets, outcome.level, sizes), abs=1e-5)
    assert outcome.bound < verdict(with_gain(0.04)).bound
    assert (outcome.groups, outcome.most) == (len(sums), most)
    assert f"{len(order)} of 1500 dev queries in {len(sums)} groups that share relevant documents, design effect" in outcome.reason


def test_a_new_query_about_a_known_document_is_not_new() -> None:
    fresh, groups = set(NAMES[:100]), {NAMES[0]: "d", NAMES[700]: "d", NAMES[1]: "e", NAMES[2]: "e"}
    order = order_queries(NAMES, fresh, groups)
    first = [query for query in confirmation_queries(NAMES, groups) if query in fresh and query != NAMES[0]]
    assert order[: len(first)] == first
    assert f"{len(first)} of them new" in verdict(with_gain(0.03), fresh=fresh, groups=groups).reason


def test_it_errs_seldom_where_documents_are_what_is_drawn() -> None:
    """Eight queries a document, all gaining or losing together, at the margin: with the level of .05, over queries and over groups."""
    draw, errors = np.random.default_rng(9), np.zeros(2)
    names = [f"q{number}" for number in range(800)]
    groups, old = {query: f"{place // 8}" for place, query in enumerate(names)}, dict.fromkeys(names, 0.5)
    for _ in range(200):
        gains = np.clip(draw.normal(-0.01, 0.2, 100), -0.5, 0.5)
        new = {query: 0.5 + float(gains[place // 8]) for place, query in enumerate(names)}
        errors += [verdict(new, {1: old}, rule={"comparisons": 1}, groups=grouping).promoted for grouping in ({}, groups)]
    assert errors[0] > 30
    assert errors[1] <= 10 + 3 * 3.1


def test_groups_that_gain_and_are_large_are_not_looked_at_first() -> None:
    """Three documents in ten have four queries, which gain .1; the others' one loses .2: -.0105 over queries, where .01 may be lost. With
    the place of its first query, a group of four would come before most others."""
    draw, errors = np.random.default_rng(3), 0
    for _ in range(100):
        sizes = np.where(draw.random(600) < 0.3, 4, 1)
        names = [f"{number:x}" for number in draw.integers(1 << 62, size=sizes.sum())]
        groups = connected(zip(names, map(str, np.repeat(np.arange(600), sizes)), strict=True))
        gains = np.repeat(np.where(sizes == 4, 0.1, -0.2), sizes)
        new = dict(zip(names, 0.5 + gains + draw.normal(0, 0.1, len(names)), strict=True))
        errors += verdict(new, {1: dict.fromkeys(names, 0.5)}, groups=groups, rule={"comparisons": 1, "veto_rate": 0}).promoted
    assert errors <= 5 + 3 * 2.2


def test_refusals() -> None:
    few = {"q0": 0.5, "q1": 0.5}
    assert not verdict(few, {1: few}).promoted, "two queries show nothing"
    chosen = next(query for query in NAMES if is_selection_query(query, {}))
    with pytest.raises(UserError, match="its only judged query is not left to confirm"):
        verdict({chosen: 0.5}, {1: {chosen: 0.5}})
    many = dict.fromkeys(NAMES, 3.0)
    with pytest.raises(UserError, match=r"promotion.metric: found a difference of 2.[4-7]\d*, expected differences in \[-1, 1\]; choose"):
        verdict(many)
    with pytest.raises(UserError, match=r"found a difference of 2.[4-7]\d*, expected differences in \[-1, 1\]"):
        verdict(many, groups=dict.fromkeys(NAMES, "one"))
    with pytest.raises(UserError, match=r"found a difference of -?1.5\d*, expected differences in \[-1, 1\]"):  # whose mean is 0
        verdict({query: OLD[query] + 1.5 * (-1) ** place for place, query in enumerate(NAMES)}, groups=dict.fromkeys(NAMES, "one"))
    with pytest.raises(UserError, match="measured on different queries"):
        verdict(with_gain(0.1), {2: OLD, 1: few})
