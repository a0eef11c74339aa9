"""Which pairs of systems are tested, each once."""

import random
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from tasks.core.statistics.paired_tests import holm
from tasks.report.params import Report
from tasks.report.significance import Pair, compare, shared_documents_note
from tasks.report.systems import System
from tasks.report.table import build


def system(name: str, values: list[float]) -> System:
    return System(
        name, "", {"test": {"AP": float(np.mean(values))}}, {"test": [str(i) for i in range(len(values))]}, {"test": np.array(values)}
    )


def test_every_pair_is_tested_once() -> None:
    rng = random.Random(0)
    systems = [system(name, [rng.random() for _ in range(9)]) for name in ("bm25", "init", "warm", "star")]
    pairs = compare(systems, "test", Report(baselines=("init", "bm25", "absent")), {})
    tested = [(pair.system, pair.baseline) for pair in pairs]
    assert tested == [("init", "bm25"), ("warm", "bm25"), ("warm", "init"), ("star", "bm25"), ("star", "init")]
    assert [pair.p_holm for pair in pairs] == holm([pair.p for pair in pairs])
    assert pairs[1].difference == pytest.approx(float((systems[2].values["test"] - systems[0].values["test"]).mean()))
    assert compare(systems[:1], "test", Report(baselines=("bm25",)), {}) == []
    assert compare(systems, "dev", Report(baselines=("bm25",)), {}) == []


def test_size_power_and_warnings_of_a_pair() -> None:
    """Against SciPy's noncentral t, with d and power worked out from the differences."""
    rng = random.Random(4)
    base = [rng.randrange(32) / 64 for _ in range(60)]
    systems = [system("bm25", base), system("weak", [v + rng.gauss(0.0, 0.2) for v in base]), system("good", [v + 0.25 for v in base])]
    systems.append(system("better", [v + rng.gauss(0.2, 0.1) for v in base]))
    weak, good, better = compare(systems, "test", Report(baselines=("bm25",)), {})
    differences = systems[1].values["test"] - systems[0].values["test"]
    d = differences.mean() / differences.std(ddof=1)
    assert weak.effect
    assert weak.effect.d == pytest.approx(d)
    critical, shift = stats.t.ppf(0.975, 59), abs(d) * 60**0.5
    expected = float(stats.nct.sf(critical, 59, shift) + stats.nct.cdf(-critical, 59, shift))
    assert weak.effect.power == pytest.approx(expected)
    assert weak.warning.startswith(
        f"test, weak against bm25: 60 queries show a difference of {abs(weak.difference):.4f} with {expected:.0%}"[:-1]
    )
    assert weak.warning.endswith("are needed for 80%")
    assert not weak.significant
    assert (better.significant, better.marked, better.warning) == (True, True, "")
    assert (good.effect, good.p, good.warning) == (None, 2.0**-59, ""), "no spread"


def test_papers_mark_dev_below_a_hundredth_and_test_below_a_twentieth() -> None:
    rng = random.Random(8)
    base = [rng.random() for _ in range(40)]
    new = [value + rng.gauss(0.05, 0.14) for value in base]
    pairs = {}
    for split in ("dev", "test"):
        systems = [
            System(name, "", {split: {"AP": 0.0}}, {split: [str(i) for i in range(40)]}, {split: np.array(values)})
            for name, values in (("bm25", base), ("new", new))
        ]
        (pairs[split],) = compare(systems, split, Report(baselines=("bm25",)), {})
    assert 0.01 < pairs["dev"].p < 0.05
    assert (pairs["dev"].marked, pairs["test"].marked) == (False, True)


@pytest.mark.parametrize("test", ["t", "permutation"])
def test_queries_about_one_document_are_drawn_at_once(test: Literal["t", "permutation"]) -> None:
    """Five queries a document that gain alike: twelve draws, not sixty; and sixty again where report.draws says so."""
    rng = random.Random(3)
    base, effects = [rng.randrange(32) / 64 for _ in range(60)], [rng.gauss(0.05, 0.1) for _ in range(12)]
    systems = [system("bm25", base), system("new", [value + effects[n // 5] for n, value in enumerate(base)])]
    groups = {str(n): f"d{n // 5}" for n in range(60)}
    (grouped,) = compare(systems, "test", Report(baselines=("bm25",), test=test), groups)
    expected = stats.ttest_1samp(effects, 0.0)
    assert (grouped.queries, grouped.groups) == (60, 12)
    flips = np.array(effects) @ (1 - 2 * ((np.arange(2**12) >> np.arange(12)[:, None]) & 1))
    by_flips = float((np.abs(flips) >= abs(sum(effects)) - 1e-12).mean())
    assert grouped.p == pytest.approx(expected.pvalue if test == "t" else by_flips)
    assert (grouped.low, grouped.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    spread = stats.tstd([effects[n // 5] for n in range(60)])
    assert grouped.design_effect == pytest.approx(stats.tstd(effects) ** 2 / 12 / (spread**2 / 60))
    assert (
        f"60 queries are 12 groups that share relevant documents, which say as much as {60 / grouped.design_effect:.0f} "
        in shared_documents_note(grouped)
    )
    (by_query,) = compare(systems, "test", Report(baselines=("bm25",), test=test, draws="queries"), groups)
    (ungrouped,) = compare(systems, "test", Report(baselines=("bm25",), test=test), {})
    assert by_query == ungrouped
    assert (by_query.groups, by_query.design_effect, shared_documents_note(by_query)) == (60, 1.0, "") and by_query.p < grouped.p


def test_the_permutation_test_decides_where_it_is_asked_for() -> None:
    """Nine queries, of which the new system loses none: 2 of 2^9 sign flips are as far from 0."""
    rng = random.Random(2)
    base = [rng.random() * 0.5 for _ in range(9)]
    systems = [system("bm25", base), system("new", [value + rng.choice([0.001, 0.4]) for value in base])]
    (by_flips,) = compare(systems, "test", Report(baselines=("bm25",), test="permutation"), {})
    (by_t,) = compare(systems, "test", Report(baselines=("bm25",)), {})
    assert by_flips.p == by_flips.p_holm == 2 / 2**9
    assert by_t.p == pytest.approx(float(stats.ttest_rel(systems[1].values["test"], systems[0].values["test"]).pvalue))
    assert (by_flips.low, by_flips.high, by_flips.effect) == (by_t.low, by_t.high, by_t.effect)


def test_the_best_value_of_a_column_is_the_lowest_where_mistakes_are_counted() -> None:
    systems = [
        System(name, "", {"test": {"AP": ap, "Hole@5": hole}}, {"test": ["q"]}, {"test": np.array([ap])})
        for name, ap, hole in (("bm25", 0.25, 0.5), ("star", 0.75, 0.125))
    ]
    assert build(systems, "AP", "test", "star", [], {}).top == ("0.7500", "0.1250")


@pytest.mark.parametrize(
    ("queries", "groups", "verdict"),
    [
        (1, 1, "one query, so nothing can be tested"),
        (5, 1, "one group of queries, so nothing can be tested"),
        (5, 2, "not significant, p 1.00"),
    ],
)
def test_of_one_group_nothing_is_said_to_be_tested(queries: int, groups: int, verdict: str) -> None:
    pair = Pair(
        "a",
        "b",
        queries,
        groups,
        queries - groups + 1,
        1.0,
        0.5,
        0.5,
        0.0,
        None,
        None,
        1.0,
        1.0,
        significant=False,
        marked=False,
        effect=None,
        warning="",
    )
    assert pair.verdict("{:.2f}".format) == verdict
