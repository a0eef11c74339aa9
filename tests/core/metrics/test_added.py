"""Measures besides ir_measures': cases worked out by hand, plain loops over all pairs, and gdeval.pl where there is Perl."""

import math
import random
import shutil

import ir_measures
import pytest

from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.measures import Qrels, cutoff, may_use_whole_run, needs_texts, parse, per_query


def draw_rankings(seed: int, queries: int = 30) -> tuple[Qrels, dict[str, list[str]]]:
    """Graded judgments and lists of many lengths; query ids are numbers, since gdeval.pl reads no others."""
    rng = random.Random(seed)
    documents = [f"d{n}" for n in range(40)]
    qrels = {str(q): {doc: rng.choice([0, 0, 1, 2, 3, 4]) for doc in rng.sample(documents, rng.randint(1, 12))} for q in range(queries)}
    return qrels, {str(q): rng.sample(documents, rng.randint(1, 40)) for q in range(queries)}


def test_added_measures_worked_by_hand() -> None:
    # Grades a 3, b 1, c 2, n 0; ranked x a n c y.
    grades, ranking = {"q": {"a": 3, "b": 1, "c": 2, "n": 0}}, {"q": ["x", "a", "n", "c", "y"]}
    names = ["Hole@2", "Hole@5", "PairwiseErrors@10", "PairwiseErrors@1", "RBP", "RBP(p=0.5)@3", "ERR@4", "nDCG(dcg='exp-log2')@4"]
    expected = [
        1 / 2,  # x
        2 / 5,  # x and y
        1 + 2 + 10,  # x is above a; x and n above c; b is not ranked
        1 + 1 + 1,
        0.2 * (0.8 + 0.8**3),
        0.5 * 0.5,
        7 / 16 / 2 + 9 / 16 * (3 / 16) / 4,  # a stops with 7/16 at rank 2; else c with 3/16 at rank 4
        (7 / math.log2(3) + 3 / math.log2(5)) / (7 + 3 / math.log2(3) + 1 / 2),
    ]
    assert per_query(parse(names, 1), grades, ranking)["q"] == pytest.approx(dict(zip(names, expected, strict=True)))


def test_added_measures_of_an_empty_list() -> None:
    names = ["Hole@3", "PairwiseErrors@7", "RBP", "ERR@3", "nDCG(dcg='exp-log2')@3"]
    assert list(per_query(parse(names, 1), {"q": {"a": 1, "b": 2}}, {})["q"].values()) == [1.0, 14.0, 0.0, 0.0, 0.0]
    assert per_query(parse(["nDCG(dcg='exp-log2')@3", "PairwiseErrors@7"], 1), {"q": {"a": 0}}, {"q": ["a"]})["q"] == {
        "nDCG(dcg='exp-log2')@3": 0.0,
        "PairwiseErrors@7": 0.0,
    }


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_pairwise_errors_are_pairs_in_the_wrong_order(seed: int, least: int) -> None:
    """A plain loop over all (relevant, other) pairs of the whole corpus, even where the run ends early; ADORE, Eq. 5 and 6."""
    qrels, _ = draw_rankings(seed)
    rng, corpus = random.Random(seed), [f"d{n}" for n in range(40)]
    rankings = {query: rng.sample(corpus, len(corpus)) for query in qrels}
    values = per_query(parse(["PairwiseErrors@5", "PairwiseErrors@40"], least), qrels, rankings)
    short_values = per_query(
        parse(["PairwiseErrors@5"], least), qrels, {query: docs[: 5 + len(qrels[query])] for query, docs in rankings.items()}
    )
    for query, docs in rankings.items():
        ranks = {doc: rank for rank, doc in enumerate(docs)}
        relevant = [doc for doc, grade in qrels[query].items() if grade >= least]
        others = sorted((doc for doc in docs if doc not in relevant), key=ranks.__getitem__)
        total = sum(ranks[other] < ranks[doc] for doc in relevant for other in others)
        top = sum(ranks[other] < ranks[doc] for doc in relevant for other in others[:5])
        assert values[query] == {"PairwiseErrors@5": top, "PairwiseErrors@40": total}
        assert short_values[query]["PairwiseErrors@5"] == top, "exact where the run ranks K others"


def test_hole_rate_is_what_judged_leaves() -> None:
    qrels, rankings = draw_rankings(9)
    for row in per_query(parse(["Hole@10", "Judged@10"], 1), qrels, rankings).values():
        assert row["Hole@10"] == pytest.approx(1 - row["Judged@10"])


@pytest.mark.skipif(not shutil.which("perl"), reason="gdeval.pl needs Perl")
def test_err_and_exponential_ndcg_equal_gdeval() -> None:
    qrels, rankings = draw_rankings(3)
    names = ["ERR@10", "nDCG(dcg='exp-log2')@10"]
    ours = per_query(parse(names, 1), qrels, rankings)
    run = {query: {doc: float(-rank) for rank, doc in enumerate(docs)} for query, docs in rankings.items()}
    theirs = list(ir_measures.gdeval.iter_calc([ir_measures.parse_measure(name) for name in names], qrels, run))
    relevant = [query for query, grades in qrels.items() if max(grades.values()) > 0]
    assert len(theirs) >= 2 * len(relevant) > 20
    for metric in theirs:
        if metric.query_id in relevant:
            name = next(name for name in names if parse([name], 1)[name] == metric.measure)
            assert ours[metric.query_id][name] == pytest.approx(metric.value, abs=6e-6)  # it prints five digits


def test_names_of_added_measures() -> None:
    assert [cutoff(name) for name in ("Hole@7", "PairwiseErrors@200", "Coverage@20", "R@5", "AP")] == [7, 200, 20, 5, 0]
    assert [cutoff(f"nDCG(judged_only={flag})@10") for flag in (True, False)] == [10, 10]
    whole = [may_use_whole_run(name) for name in ("AP", "RBP", "nDCG(judged_only=True)@10", "nDCG(judged_only=False)@10", "R@5", "Hole@7")]
    assert whole == [True, True, True, False, False, False]
    assert needs_texts(parse(["AP", "Coverage@20", "Hole@5"], 1)) == ["Coverage@20"]
    assert [lower_is_better(name) for name in ("Hole@7", "PairwiseErrors@200", "Coverage@20", "nDCG@10")] == [True, True, False, False]
    with pytest.raises(ValueError, match="the total needs a ranking of the whole corpus; write PairwiseErrors@100"):
        parse(["PairwiseErrors"], 1)
    with pytest.raises(ValueError, match="listed twice"):
        parse(["Hole@5", "Hole@5"], 1)
