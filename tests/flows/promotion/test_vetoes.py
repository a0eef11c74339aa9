"""Groups that veto: against scipy's test, a plain loop of Benjamini and Hochberg, and bets; and how often they err."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.promotion import betting
from flows.promotion.groups import Draws
from flows.promotion.records import Promotion, Veto
from flows.promotion.vetoes import find_vetoes, loss_p_value, slices_of, surely_loses
from tasks.core.statistics.clusters import mean_over_groups
from tasks.core.statistics.confirmation import shuffled

RULE = Promotion()


def reference_rejections(chances: list[float], rate: float) -> set[int]:
    """Those that Benjamini and Hochberg reject: all up to the last of the sorted p that is at most its rank times rate / tests."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    last = max((rank for rank, place in enumerate(order, 1) if chances[place] <= rank * rate / len(chances)), default=0)
    return set(order[:last])


def test_groups_of_many_sizes_are_tested_with_their_effective_number() -> None:
    sample = Draws(np.random.default_rng(1).uniform(-0.9, 0.5, 100), np.append(np.zeros(50, int), np.arange(1, 51)))
    estimate = mean_over_groups(sample.differences, sample.numbers)
    expected = stats.t.cdf((estimate.mean + 0.01) / estimate.error, 100**2 / (50**2 + 50) - 1)
    assert loss_p_value(sample, 0.01) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(15))
def test_the_groups_that_veto_are_those_of_a_plain_loop(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [f"q{n}" for n in range(400)]
    differences = dict(zip(names, draw.normal(0.0, 0.25, 400), strict=True))
    groups = {f"g{number}": list(draw.choice(names, draw.integers(30, 200), replace=False)) for number in range(12)}
    for query in groups["g0"][:30] + groups["g1"][:60]:
        differences[query] -= 0.2
    chances, sure = [], set[int]()
    for place, queries in enumerate(groups.values()):
        values = np.array([differences[query] for query in shuffled(queries, {})])
        sure |= {place} if betting.shows_more(-values, RULE.margin, RULE.veto_rate / 12, bets=betting.BOLD) else set()
        t = (values.mean() + RULE.margin) / (values.std(ddof=1) / np.sqrt(len(values)))
        chances.append(float(stats.t.cdf(t, len(values) - 1)))
    vetoes = find_vetoes(differences, groups, RULE)
    assert {veto.group for veto in vetoes} == {f"g{place}" for place in reference_rejections(chances, RULE.veto_rate) & sure}
    assert [veto.difference for veto in vetoes] == sorted(veto.difference for veto in vetoes), "the worst first"
    for veto in vetoes:
        values = [differences[query] for query in groups[veto.group]]
        assert (veto.queries, veto.difference) == (len(values), pytest.approx(np.mean(values)))
        p_value = stats.ttest_1samp(values, -RULE.margin, alternative="less").pvalue
        assert loss_p_value(Draws(np.array(values), np.arange(len(values))), RULE.margin) == pytest.approx(p_value)
        above = [p for p in chances if p >= p_value * (1 - 1e-9)]
        assert veto.p == pytest.approx(min(p * 12 / sum(other <= p for other in chances) for p in above))


def test_small_groups_all_queries_and_the_rate() -> None:
    differences = {f"q{n}": -0.5 if n < 40 else 0.1 for n in range(100)}
    low, twenty = [f"q{n}" for n in range(40)], [f"q{n}" for n in range(20)]
    assert find_vetoes(differences, {"low": low, "few": twenty}, RULE) == [
        Veto("low", 40, pytest.approx(-0.5), pytest.approx((1.01 / 1.5) ** 40))
    ]
    assert [veto.group for veto in find_vetoes(differences, {"few": twenty}, Promotion(veto_queries=20))] == ["few"]
    assert find_vetoes(differences, {"low": low}, RULE, groups=dict.fromkeys(low, "one document")) == [], "one draw"
    assert find_vetoes(differences, {"all": list(differences), "other": low[:29]}, RULE) == [], "the whole of dev is no group"
    assert find_vetoes(differences, {"unjudged too": [*low, "x", "y"]}, RULE)[0].queries == 40
    for loss, p in ((0.01, 1.0), (0.02, (1.01 / 1.02) ** 30), (0.18, (1.01 / 1.18) ** 30), (1.0, (1.01 / 2) ** 30)):
        equal = Draws(np.full(30, -loss), np.arange(30))
        assert loss_p_value(equal, 0.01) == pytest.approx(p), "that none of 30 is another, were the mean -.01"
        assert surely_loses(equal, 0.01, 0.01) == (p <= 0.01)


def test_a_model_that_loses_nowhere_is_seldom_vetoed() -> None:
    """Zeros, small steps and a few whole ones, as differences of nDCG are; four groups by length and nine by question word, each week."""
    vetoed = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        values = draw.choice([-1.0, -0.37, 0.0, 0.37, 1.0], 1000, p=[0.02, 0.1, 0.76, 0.1, 0.02]) - 0.01
        names = [f"q{n}" for n in range(1000)]
        differences = dict(zip(names, values.tolist(), strict=True))
        groups = {}
        for kind, shares in (("words", [0.25] * 4), ("asks", [0.45, 0.12, 0.1, 0.08, *[0.05] * 5])):
            labels = draw.choice(len(shares), 1000, p=shares)
            groups |= {f"{kind} {label}": [names[place] for place in np.flatnonzero(labels == label)] for label in range(len(shares))}
        vetoed += bool(find_vetoes(differences, groups, RULE))
    assert vetoed <= 15 + 3 * 3.8, "5% of 300, give or take three standard deviations"


def test_groups_are_those_of_failures() -> None:
    texts = {"1": "who is it", "2": "what was that in there", "3": "is it", "4": "where did all of them go"}
    slices = slices_of(texts, {"source": {"1": "web", "2": "mail", "4": "web"}})
    assert slices["question word who"] == ["1"]
    assert slices["question word yes or no"] == ["3"]
    assert slices["words 2"] == ["3"]
    assert (slices["column source web"], slices["column source (none)"]) == (["1", "4"], ["3"])
    assert slices_of({}, {}) == {}
    by_length = slices_of({f"{number}": "word " * number for number in range(1, 41)}, {})
    assert [len(queries) for name, queries in by_length.items() if name.startswith("words ")] == [10] * 4


@pytest.mark.parametrize(("values", "shares"), [([-0.1, 0, 0.4], [0.4, 0.5, 0.1]), ([-0.063, 0, 0.57], [0.45, 0.5, 0.05])])
def test_an_equal_model_with_skewed_gains_is_seldom_vetoed(values: list[float], shares: list[float]) -> None:
    """Sixteen groups of 31 queries; many lose a little and few gain much. The t-tests alone vetoed 38 and 90% of such models."""
    draw, vetoed = np.random.default_rng(0), 0
    for _ in range(150):
        differences = {f"{n}": float(x) for n, x in enumerate(draw.choice(values, p=shares, size=1000))}
        labels = draw.permutation(1000)
        slices = {f"g{g}": [f"{n}" for n in labels[g * 31 : (g + 1) * 31]] for g in range(16)}
        vetoed += bool(find_vetoes(differences, slices, RULE))
    assert vetoed <= 7.5 + 3 * math.sqrt(150 * 0.05 * 0.95)
