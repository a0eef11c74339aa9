"""When a new model is promoted by a t-test. The bound itself: test_groups.py."""

from typing import Any

import numpy as np
import pytest

from flows.promotion.groups import draws, lower_bound
from flows.promotion.records import Evidence, Promotion, Verdict
from flows.promotion.rule import decide, measure_of
from tasks.core.errors import UserError
from tasks.core.statistics.confirmation import shuffled
from tasks.core.statistics.judged import click_id


def scores(*values: float) -> dict[str, float]:
    return {f"q{number}": value for number, value in enumerate(values)}


def judge(new: dict[str, float], old: dict[str, float], groups: Any = (), **rule: Any) -> Verdict:
    return decide(Evidence(new, {1: old}, groups=dict(groups)), "m", Promotion(**({"rule": "not_worse"} | rule)))


def test_the_rules() -> None:
    old, many = scores(0.5, 0.6, 0.7), scores(*[0.5] * 300)
    assert judge(many, many).promoted, "no loss on 300 queries"
    assert not judge(many, many, rule="better").promoted
    slightly = scores(*[0.495] * 600)
    assert judge(slightly, scores(*[0.5] * 600), margin=0.01).promoted
    assert not judge(slightly, scores(*[0.5] * 600), margin=0.009).promoted
    noisy = scores(0.9, 0.2, 0.8)
    verdict = judge(noisy, old)
    assert not verdict.promoted, "a higher mean that may be chance has not been shown to be no worse"
    assert verdict.difference == pytest.approx(0.1 / 3)
    assert (verdict.queries, verdict.new, verdict.old) == (3, pytest.approx(1.9 / 3), pytest.approx(0.6))
    assert (verdict.rule, verdict.dev, verdict.spread) == ("not_worse", 3, pytest.approx(np.std([0.4, -0.4, 0.1], ddof=1)))
    assert (verdict.level, verdict.looks, verdict.against) == (0.05, 1, {})
    assert verdict.reason == f"m +0.0333 on dev (3 queries), lower bound {verdict.bound:+.4f} is not >= -0.0100 (not_worse)"


def test_models_too_alike_to_tell() -> None:
    """0 lost of 30: a model that loses 1 on 3% of queries would show that by 40%."""
    few = scores(*[0.5] * 30)
    verdict = judge(few, few)
    assert not verdict.promoted
    assert verdict.reason == (
        "m +0.0000 on dev (30 queries), lower bound -0.0950 is not >= -0.0100 (not_worse); "
        "fewer than 299 queries cannot show it, since losses may be too rare to be seen"
    )
    assert 0.99**298 > 0.05 > 0.99**299
    assert "fewer than 595 queries" in judge(scores(*[0.495] * 30), few).reason, "a loss within the margin"
    assert 0.995**-594 * 0.99**594 > 0.05 > 0.995**-595 * 0.99**595
    assert "cannot show it" not in judge(few, few, margin=0).reason, "no number of queries can"
    better = judge(scores(*[0.52] * 30), few, rule="better")
    assert not better.promoted and "; fewer than 152 queries" in better.reason
    assert 1.02**-151 > 0.05 > 1.02**-152
    unsure = judge(scores(*[0.484, 0.524] * 15), few, rule="better")
    assert unsure.reason.endswith(" is not > 0 (better)"), "the t-test does not take it for shown either"


def test_where_one_group_has_nearly_all_queries_more_of_them_are_not_asked_for() -> None:
    new = dict(zip(scores(*[0.0] * 100), np.random.default_rng(2).uniform(0.1, 0.9, 100).tolist(), strict=True))
    verdict = judge(new, scores(*[0.0] * 100), groups={f"q{number}": "large" for number in range(90)}, rule="better")
    assert not verdict.promoted
    assert verdict.reason.endswith(
        f"on dev (100 queries, of which 90 share relevant documents), lower bound {verdict.bound:+.4f} is not > 0 (better)"
    )


def test_queries_that_share_a_document_count_as_one_draw() -> None:
    """400 documents of 5 queries each, which gain or lose together."""
    gains = np.random.default_rng(1).normal(0, 0.35, 400)
    gains = np.clip(gains, -0.9, 0.9) + 0.014 - np.clip(gains, -0.9, 0.9).mean()
    old = dict.fromkeys([f"q{number:04}" for number in range(2000)], 0.0)
    new = {query: float(gains[place // 5]) for place, query in enumerate(old)}
    groups = {query: f"g{place // 5}" for place, query in enumerate(old)}
    for rule in ("not_worse", "better"):
        assert judge(new, old, rule=rule).promoted and not judge(new, old, groups, rule=rule).promoted
    verdict = judge(new, old, groups)
    assert (verdict.groups, verdict.most, verdict.queries) == (400, 5, 2000)
    assert verdict.spread == pytest.approx(gains.std(ddof=1))
    assert verdict.bound == pytest.approx(gains.mean() - 1.6487 * gains.std(ddof=1) / 20, abs=1e-5), "t(0.95, 399)"
    assert "(2,000 queries in 400 groups that share relevant documents, design effect 5.0)" in verdict.reason
    assert judge(new, old).reason.startswith(f"m {verdict.difference:+.4f} on dev (2,000 queries), lower")
    single_group = judge(new, old, dict.fromkeys(old, "g"))
    assert single_group.bound < -0.9 and "; fewer than " in single_group.reason, "all of them are one draw"


def test_the_order_of_bets_has_nothing_to_do_with_ids() -> None:
    """Where models are so alike that bets are asked too: those that gain have the first ids."""
    draw = np.random.default_rng(1)
    gains = dict(zip((f"q{n:03}" for n in range(200)), np.sort(draw.normal(0.0, 0.02, 200))[::-1], strict=True))
    old = dict.fromkeys(gains, 0.5)
    verdict = judge({query: 0.5 + gain for query, gain in gains.items()}, old)
    by_digest, by_id = (lower_bound(draws(gains, order, {}), 0.05) for order in (shuffled(gains, {}), list(gains)))
    assert verdict.bound == pytest.approx(by_digest, abs=1e-9)
    assert abs(by_id - by_digest) > 1e-4


@pytest.mark.parametrize("rule", ["not_worse", "guaranteed"])
def test_queries_of_clicks_decide_nothing(rule: str) -> None:
    old = scores(*[0.5] * 400)
    new, clicks = {query: value + 0.01 * (-1) ** number for number, (query, value) in enumerate(old.items())}, scores(*[0.0] * 400)
    clicked = {click_id(query): 1.0 for query in clicks}
    promotion = Promotion.model_validate({"rule": rule})
    alone = decide(Evidence(new, {1: old}, slices={"all": list(new)}), "m", promotion)
    beside = Evidence({**new, **clicked}, {1: {**old, **dict.fromkeys(clicked, 0.0)}}, slices={"all": [*new, *clicked]})
    assert decide(beside, "m", promotion) == alone
    with pytest.raises(UserError, match="all 400 judged queries come from clicks, which decide no promotion"):
        decide(Evidence(clicked, {1: clicked}), "m", promotion)


def test_refusals() -> None:
    with pytest.raises(UserError, match="measured on different queries"):
        judge(scores(1), {"other": 1.0})
    with pytest.raises(UserError, match="found 1 judged query in common"):
        judge(scores(1), scores(1))
    assert judge(scores(1, 0), scores(1, 0)).queries == 2
    sections = {"report": {"metric": "AP"}, "evaluate": {"measures": ["AP", "RR@10"]}}
    assert measure_of(Promotion(), sections) == "AP"
    assert measure_of(Promotion(metric="RR@10"), sections) == "RR@10"
    with pytest.raises(UserError, match=r"promotion.metric: found 'P@7', expected one of evaluate.measures: AP, RR@10"):
        measure_of(Promotion(metric="P@7"), sections)
    with pytest.raises(UserError, match=r"promotion.metric: found 'Hole@10', which counts mistakes"):
        measure_of(Promotion(metric="Hole@10"), {"evaluate": {"measures": ["AP", "Hole@10"]}})
