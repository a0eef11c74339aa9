"""When a new model is promoted by a t-test: the bound against scipy's paired test, and a case worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flows.promotion.rule import Evidence, Promotion, Verdict, decide, lower_bound, measure_of
from tasks.core.stage.errors import UserError


def test_a_case_worked_out_by_hand() -> None:
    """d = 0.1, 0.2, 0.3: mean 0.2, s = 0.1, t(0.95, 2) = 2.9200 (any table), so L = 0.2 - 2.92 * 0.1 / sqrt(3) = 0.0314."""
    assert lower_bound([0.1, 0.2, 0.3], 0.05) == pytest.approx(0.2 - 2.919986 * 0.1 / math.sqrt(3), abs=1e-6)
    assert lower_bound([0.1, 0.2, 0.3], 0.05) == pytest.approx(0.0314, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_the_bound_decides_as_scipys_one_sided_paired_test(seed: int, margin: float) -> None:
    random = np.random.default_rng(seed)
    old = random.random(12)
    new = np.clip(old + random.normal(0.02, 0.06, 12), 0, 1)
    rejected = stats.ttest_rel(new + margin, old, alternative="greater").pvalue < 0.05
    assert (lower_bound([float(d) for d in new - old], 0.05) > -margin) == rejected
    low = stats.ttest_rel(new, old, alternative="greater").confidence_interval(0.95).low
    assert lower_bound([float(d) for d in new - old], 0.05) == pytest.approx(low, abs=1e-12)


def named(*values: float) -> dict[str, float]:
    return {f"q{number}": value for number, value in enumerate(values)}


def judge(new: dict[str, float], old: dict[str, float], **rule: Any) -> Verdict:
    return decide(Evidence(new, {1: old}), "m", Promotion(**({"rule": "not_worse"} | rule)))


def test_the_rules() -> None:
    old = named(0.5, 0.6, 0.7)
    assert judge(old, old, margin=0).promoted, "equal is not worse"
    assert not judge(old, old, rule="better").promoted
    slightly = named(0.495, 0.595, 0.695)
    assert judge(slightly, old, margin=0.01).promoted
    assert not judge(slightly, old, margin=0.001).promoted
    noisy = named(0.9, 0.2, 0.8)
    verdict = judge(noisy, old)
    assert not verdict.promoted, "a higher mean that may be chance has not been shown to be no worse"
    assert verdict.difference == pytest.approx(0.1 / 3)
    assert (verdict.queries, verdict.new, verdict.old) == (3, pytest.approx(1.9 / 3), pytest.approx(0.6))
    assert (verdict.rule, verdict.dev, verdict.spread) == ("not_worse", 3, pytest.approx(np.std([0.4, -0.4, 0.1], ddof=1)))
    assert verdict.reason == f"m +0.0333 on dev (3 queries), lower bound {verdict.bound:+.4f} is not >= -0.0100 (not_worse)"


def test_refusals() -> None:
    with pytest.raises(UserError, match="measured on different queries"):
        judge(named(1), {"other": 1.0})
    with pytest.raises(UserError, match="found 1 judged queries"):
        judge(named(1), named(1))
    sections = {"report": {"metric": "AP"}, "evaluate": {"measures": ["AP", "RR@10"]}}
    assert measure_of(Promotion(), sections) == "AP"
    assert measure_of(Promotion(metric="RR@10"), sections) == "RR@10"
    with pytest.raises(UserError, match=r"promotion.metric: found 'P@7', expected one of evaluate.measures: AP, RR@10"):
        measure_of(Promotion(metric="P@7"), sections)
    with pytest.raises(UserError, match=r"promotion.metric: found 'Hole@10', which counts mistakes"):
        measure_of(Promotion(metric="Hole@10"), {"evaluate": {"measures": ["AP", "Hole@10"]}})
