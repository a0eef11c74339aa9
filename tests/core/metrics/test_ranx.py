"""Every mean and every p-value against ranx, where it is installed (it is no dependency: it needs numba)."""

import random

import numpy as np
import pytest

from tasks.core.metrics.measures import Qrels, means, parse, per_query
from tasks.core.statistics.paired_tests import paired_t_test, permutation_test

ranx = pytest.importorskip("ranx")
tests = pytest.importorskip("ranx.statistical_tests")

NAMES = {
    "nDCG@10": "ndcg@10",
    "nDCG(dcg='exp-log2')@10": "ndcg_burges@10",
    "RR": "mrr",
    "RR@10": "mrr@10",
    "R@5": "recall@5",
    "R@20": "recall@20",
    "AP": "map",
    "P@3": "precision@3",
    "Success@5": "hit_rate@5",
    "Rprec": "r-precision",
    "RBP(p=0.8)": "rbp.80",
    "RBP(p=0.95)": "rbp.95",
}


def draw_runs(seed: int, level: int) -> tuple[Qrels, list[dict[str, list[str]]]]:
    """Graded judgments, some queries without a relevant document; two systems with short lists, and queries that one lacks."""
    rng = random.Random(seed)
    documents = [f"d{n}" for n in range(30)]
    qrels = {f"q{q:02}": {doc: rng.choice([0, 1, 2, 3]) for doc in rng.sample(documents, rng.randint(1, 8))} for q in range(40)}
    for query in ("q03", "q17"):
        qrels[query] = dict.fromkeys(qrels[query], level - 1)
    return qrels, [{q: rng.sample(documents, rng.randint(1, 25)) for q in qrels if q != f"q{10 + number}"} for number in range(2)]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_means_equal_ranx(seed: int, level: int) -> None:
    qrels, (run, _) = draw_runs(seed, level)
    values = per_query(parse(list(NAMES), level), qrels, run)
    actual = means(list(NAMES), values)
    theirs = ranx.Run({query: {doc: 100.0 - rank for rank, doc in enumerate(docs)} for query, docs in run.items()})
    binary = {query: {doc: int(grade >= level) for doc, grade in grades.items()} for query, grades in qrels.items()}
    for name, ranx_name in NAMES.items():
        judgments = qrels if "ndcg" in ranx_name else binary  # ranx's RBP multiplies by grades
        expected = ranx.evaluate(ranx.Qrels(judgments), theirs, ranx_name, make_comparable=True)
        assert actual[name] == pytest.approx(expected, abs=1e-9), name


@pytest.mark.parametrize("seed", range(4))
def test_p_values_equal_ranx(seed: int) -> None:
    qrels, runs = draw_runs(seed, 1)
    values = [per_query(parse(["nDCG@10"], 1), qrels, run) for run in runs]
    first, second = (np.array([row["nDCG@10"] for row in query_values.values()]) for query_values in values)
    expected, _ = tests.paired_student_t_test(first, second)
    assert paired_t_test(first, second, 0.05)[0] == pytest.approx(expected, abs=1e-9)
    drawn_p, _ = tests.fisher_randomization_test(first, second, 20_000)
    assert permutation_test(first, second, permutations=100_000, seed=1) == pytest.approx(drawn_p, abs=0.02)
