"""Groups of queries against scipy and cases worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.core.statistics.groups import Dimension, by_value
from tasks.failures.groups import compare, rarity


def test_rarity_is_the_mean_idf_of_distinct_terms() -> None:
    frequencies = {"the": 90, "cat": 3}
    idf = [math.log(1 + (100 - n + 0.5) / (n + 0.5)) for n in (90, 3, 0)]
    assert rarity(["the", "cat", "the", "unseen"], frequencies, 100) == pytest.approx(sum(idf) / 3)
    assert rarity([], frequencies, 100) == 0


def test_figures_of_groups() -> None:
    draw = np.random.default_rng(1)
    against = draw.random(60)
    model = against + draw.normal(0.02, 0.1, 60)
    model[:20] -= 0.2
    labels = ["bad"] * 20 + ["good"] * 37 + ["few"] * 3
    single = Dimension(["all"] * 60, ["all"])
    groups = compare({"kind": by_value(labels), "one": single}, model, against, drawn=np.arange(60), least=5, alpha=0.1)
    assert [(group.dimension, group.name, group.queries) for group in groups] == [
        ("kind", "good", 37),
        ("kind", "bad", 20),
        ("kind", "few", 3),
    ]
    tests = [stats.ttest_rel(model[rows], against[rows]) for rows in (slice(20, 57), slice(0, 20))]
    expected = sorted(test.pvalue for test in tests)
    corrected = {expected[0]: 2 * expected[0], expected[1]: max(2 * expected[0], expected[1])}  # Holm, by hand
    for group, test in zip(groups, tests, strict=False):
        assert (group.low, group.high) == pytest.approx(tuple(test.confidence_interval(0.9)))
        assert group.p_holm == pytest.approx(corrected[test.pvalue])
    assert groups[1].difference == pytest.approx(float(np.mean(model[:20] - against[:20])))
    assert groups[2].low is groups[2].p_holm is None, "too few queries to test"


def test_one_system_alone_has_means_and_their_intervals() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.5, 0.0, 0.5])
    first = compare({"kind": by_value(list("aaabbb"))}, values, None, drawn=np.arange(6), least=2, alpha=0.05)[0]
    assert (first.against, first.p_holm, first.difference) == (None, None, pytest.approx(2 / 3))
    half = stats.t.ppf(0.975, 2) * values[:3].std(ddof=1) / math.sqrt(3)
    assert (first.low, first.high) == pytest.approx((2 / 3 - half, 2 / 3 + half))


def test_queries_about_one_document_are_drawn_at_once() -> None:
    """Two kinds of queries, each with four about each of five documents; a document may have queries of both kinds."""
    draw = np.random.default_rng(2)
    against, gains = draw.random(40), draw.normal(0.05, 0.1, (2, 5))
    labels, drawn = ["a", "b"] * 20, np.repeat(np.arange(5), 8) + 3  # from 3 on: numbers need not begin at 0
    model = against + np.array([gains[place % 2, place // 8] for place in range(40)])
    compared = compare({"kind": by_value(labels)}, model, against, drawn=drawn, least=5, alpha=0.05)
    uncompared = compare({"kind": by_value(labels)}, model, None, drawn=drawn, least=5, alpha=0.05)
    for group, group_alone, gain, start in zip(compared, uncompared, gains, (0, 1), strict=True):
        assert (group.low, group.high) == pytest.approx(tuple(stats.ttest_1samp(gain, 0.0).confidence_interval(0.95)))
        means = model[start::2].reshape(5, 4).mean(axis=1)
        assert (group_alone.low, group_alone.high) == pytest.approx(tuple(stats.ttest_1samp(means, 0.0).confidence_interval(0.95)))
