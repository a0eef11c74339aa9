"""Groups of queries that share a relevant document: against scipy's components, plain loops, and how often tests over them err."""

import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tasks.core.statistics.clusters import Mean, connected, describe_groups, design_effect, group_numbers, mean_over_groups, read_groups
from tasks.core.statistics.paired_tests import mean_interval, paired_t_test, permutation_test
from tasks.core.statistics.power import effect
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS

CLICK_1 = "click-0000000000000001"
CLICK_2 = "click-0000000000000002"


def test_groups_worked_by_hand(tmp_path: Path) -> None:
    """b and d share y, d and a share z, so a, b, d are one; c is alone with x, and e has nothing relevant."""
    pairs = [("b", "y"), ("d", "y"), ("c", "x"), ("d", "z"), ("a", "z")]
    assert connected(pairs) == {"b": "a", "d": "a", "c": "c", "a": "a"}
    assert group_numbers(["e", "d", "c", "a"], connected(pairs)).tolist() == [0, 1, 2, 1]
    assert group_numbers(["a", "b"], {"b": "a"}).tolist() == [0, 1], "a query without a group is not in the group of its name"
    rows = [*((query, doc, 1) for query, doc in pairs), ("c", "z", 0), ("e", "z", -1)]
    write_table(tmp_path / "dev.parquet", QRELS, [pa.table([list(column) for column in zip(*rows, strict=True)], schema=QRELS)])
    assert read_groups(tmp_path / "dev.parquet") == connected(pairs), "judged not relevant is not shared"
    assert read_groups(tmp_path / "test.parquet") == {}
    clicked = [(CLICK_1, "x", 1), (CLICK_1, "y", 1), (CLICK_2, "x", 1)]
    for judgments, expected in (
        ([*rows, *clicked], connected(pairs)),
        (clicked, {CLICK_1: CLICK_1, CLICK_2: CLICK_1}),
    ):
        table = pa.table([list(column) for column in zip(*judgments, strict=True)], schema=QRELS)
        write_table(tmp_path / "dev.parquet", QRELS, [table])
        assert read_groups(tmp_path / "dev.parquet") == expected, "a click joins no groups, unless there are only clicks"


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_the_components_of_the_graph(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(rng.randrange(60), rng.randrange(70)) for _ in range(55)]
    graph = coo_array((np.ones(len(pairs)), ([q for q, _ in pairs], [60 + d for _, d in pairs])), shape=(130, 130))
    labels = connected_components(graph, directed=False)[1]
    groups = connected((f"q{query}", f"d{doc}") for query, doc in pairs)
    queries = sorted({query for query, _ in pairs})
    for query_a in queries:
        for query_b in queries:
            assert (groups[f"q{query_a}"] == groups[f"q{query_b}"]) == (labels[query_a] == labels[query_b])


@pytest.mark.parametrize("seed", range(4))
def test_the_error_of_a_mean_over_groups_is_the_jackknifes(seed: int) -> None:
    """Means without one group at a time; for groups of one size, the cluster-robust error (Cameron, Miller 2015, with G / (G - 1))."""
    rng = np.random.default_rng(seed)
    values, numbers = rng.normal(size=40), np.unique(rng.integers(0, 12, 40), return_inverse=True)[1]
    estimate, mean, groups = mean_over_groups(values, numbers), values.mean(), numbers.max() + 1
    without = [np.mean([values[i] for i in range(40) if numbers[i] != group]) for group in range(groups)]
    error = math.sqrt((groups - 1) / groups * sum((other - mean) ** 2 for other in without))
    assert (estimate.mean, estimate.error) == (pytest.approx(mean), pytest.approx(error))
    sizes = [int((numbers == group).sum()) for group in range(groups)]
    assert estimate.groups == groups > estimate.effective == pytest.approx(40**2 / sum(size**2 for size in sizes))
    assert design_effect(values, numbers) == pytest.approx(error**2 / (values.var(ddof=1) / 40))
    even = np.repeat(np.arange(8), 5)
    deviations = [sum(values[i] - mean for i in range(40) if even[i] == group) for group in range(8)]
    robust = math.sqrt(8 / 7 * sum(deviation**2 for deviation in deviations)) / 40
    assert mean_over_groups(values, even) == Mean(pytest.approx(mean), pytest.approx(robust), 8, 8.0, True)
    alone = mean_over_groups(values, np.arange(40))
    assert alone == Mean(pytest.approx(mean), pytest.approx(stats.sem(values)), 40, 40.0, True)
    assert design_effect(values, np.arange(40)) == design_effect(values, np.zeros(40, int)) == 1.0


def test_one_group_with_nearly_all_queries_says_nothing_of_others() -> None:
    values = np.arange(10.0)
    assert mean_over_groups(values, np.maximum(np.arange(10) - 7, 0)).testable, "80 %"
    for numbers in (np.maximum(np.arange(10) - 8, 0), np.zeros(10, int)):
        assert not mean_over_groups(values, numbers).testable
        assert paired_t_test(values, np.zeros(10), 0.05, numbers) == (1.0, None, None)
        assert mean_interval(values, 0.05, numbers) == (None, None)
        assert effect(values, 0.05, numbers) is None and design_effect(values, numbers) == 1.0
    assert not mean_over_groups(np.empty(0), np.empty(0, int)).testable and not mean_over_groups(np.ones(1), np.zeros(1, int)).testable


@pytest.mark.parametrize("sizes", [[1] * 100, [5] * 40, [100] + [1] * 100, [160] + [1] * 40, [40, 30, 20] + [3] * 30])
@pytest.mark.parametrize("shared", [0.0, 0.05])
def test_tests_over_groups_of_any_sizes_reject_no_more_than_they_say(sizes: list[int], shared: float) -> None:
    """With one group of half of the queries or more, the usual cluster-robust error rejects a true null in 11 to 40 % of cases."""
    rng, numbers = np.random.default_rng(5), np.repeat(np.arange(len(sizes)), sizes)
    zeros, rejected, missed = np.zeros(len(numbers)), 0, 0
    for _ in range(400):
        of_groups, own = rng.normal(size=len(sizes))[numbers], rng.normal(size=len(numbers))
        p, low, high = paired_t_test(math.sqrt(shared) * of_groups + math.sqrt(1 - shared) * own, zeros, 0.05, numbers)
        rejected += p <= 0.05
        missed += low is None or high is None or not low <= 0 <= high
    assert rejected == missed <= 20 + 3 * math.sqrt(19)


def test_a_design_effect_worked_by_hand() -> None:
    """Twice the same: 1, 1, -1, -1 are two draws in place of four, and s^2 is 4/3: SE^2 is 2/1 (4 + 4) / 16 = 1, and 1/3 if independent."""
    assert design_effect(np.array([1.0, 1.0, -1.0, -1.0]), np.array([0, 0, 1, 1])) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (1.6, "131 independent ones (design effect 1.6)"),
        (0.96, "210 independent ones (design effect 1.0)"),
        (0.94, "210 independent ones (design effect 0.9; below 1 by chance, as a rule)"),
        (0.0, "210 independent ones (design effect 0.0; below 1 by chance, as a rule)"),
    ],
)
def test_queries_never_say_as_much_as_more_queries(effect: float, expected: str) -> None:
    assert (
        describe_groups(210, 200, effect, largest=2)
        == f"210 queries are 200 groups that share relevant documents, which say as much as {expected}"
    )


def test_one_query_or_group_tests_nothing() -> None:
    assert describe_groups(1, 1, 1.0, largest=1) == "there is one query, so nothing can be tested"
    assert describe_groups(2, 1, 1.0, largest=2).startswith("all 2 queries share relevant documents, so nothing can be tested")
    assert describe_groups(3, 2, 1.0, largest=2).startswith("3 queries are 2 groups")
    assert describe_groups(300, 31, 1.0, largest=270) == (
        "270 of 300 queries share relevant documents, and the others are 30 groups, "
        "so there is no interval, and only a permutation test (report.test) gives a p-value"
    )


def test_a_design_effect_of_nothing_is_told() -> None:
    """What one query of a group gains, its other query loses."""
    effect = design_effect(np.array([0.5, -0.5, 0.5, -0.5, 0.0]), np.array([0, 0, 1, 1, 2]))
    assert effect == 0 and "say as much as 5 independent ones" in describe_groups(5, 3, effect, largest=2)


def test_tests_over_groups_err_as_often_as_they_say() -> None:
    """Four queries a document, half of the variance shared, no difference: by query every fifth test errs, by group one in twenty."""
    rng, numbers = np.random.default_rng(3), np.repeat(np.arange(40), 4)
    errors = np.zeros(3)
    for _ in range(400):
        values = np.repeat(rng.normal(size=40), 4) + rng.normal(size=160)
        by_t = [paired_t_test(values, np.zeros(160), 0.05, groups)[0] for groups in (None, numbers)]
        errors += np.array([*by_t, permutation_test(values, np.zeros(160), permutations=1000, seed=1, groups=numbers)]) <= 0.05
    assert errors[0] > 60
    assert max(errors[1:]) <= 20 + 3 * math.sqrt(19)
