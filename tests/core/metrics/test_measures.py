"""Measures against plain Python and against the published figures of TREC DL 2020."""

import ast
import math
import random
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.metrics.measures import means, parse, per_query, read_qrels
from tasks.core.params.sections import validate
from tasks.core.tables.schemas import QRELS
from tasks.evaluate.external import evaluate_files
from tasks.evaluate.params import Evaluate

NAMES = ["nDCG@10", "RR@10", "R@5", "AP", "nDCG", "RR", "P@3"]
TREC = Path(__file__).parents[4] / "shared" / "data" / "trec-dl20"


def reference_measures(ranking: list[str], grades: dict[str, int], level: int) -> dict[str, float]:
    """Every measure of NAMES by its definition."""

    def dcg(gains: list[int]) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))

    gains = [max(grades.get(doc, 0), 0) for doc in ranking]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    hits = [grades.get(doc, 0) >= level for doc in ranking]
    relevant = sum(grade >= level for grade in grades.values())
    first = next((rank for rank, hit in enumerate(hits, 1) if hit), math.inf)
    precisions = [sum(hits[:rank]) / rank for rank, hit in enumerate(hits, 1) if hit]
    return {
        "nDCG@10": dcg(gains[:10]) / dcg(ideal[:10]) if ideal else 0.0,
        "nDCG": dcg(gains) / dcg(ideal) if ideal else 0.0,
        "RR@10": 1 / first if first <= 10 else 0.0,
        "RR": 1 / first,
        "R@5": sum(hits[:5]) / relevant if relevant else 0.0,
        "P@3": sum(hits[:3]) / 3,
        "AP": sum(precisions) / relevant if relevant else 0.0,
    }


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_measures_equal_plain_python(seed: int, level: int) -> None:
    rng = random.Random(seed)
    documents = [f"d{i}" for i in range(30)]
    judgments = [(f"q{q}", doc, rng.choice([0, 0, 1, 2, 3])) for q in range(40) for doc in rng.sample(documents, rng.randint(1, 8))]
    rankings = {f"q{q}": rng.sample(documents, rng.randint(1, 25)) for q in range(35)} | {"stranger": ["d1"]}
    qrels = read_qrels(pa.table([list(column) for column in zip(*judgments, strict=True)], schema=QRELS))
    values = per_query(parse(NAMES, level), qrels, rankings)
    grades = {q: {doc: grade for query, doc, grade in judgments if query == q} for q in {row[0] for row in judgments}}
    expected = {q: reference_measures(rankings.get(q, []), query_grades, level) for q, query_grades in grades.items()}
    assert values.keys() == expected.keys()
    assert any(max(query_grades.values()) < level for query_grades in grades.values()), (
        "queries without a relevant document count 0, as in trec_eval"
    )
    for query, row in values.items():
        assert row == pytest.approx(expected[query], abs=1e-9)
    for name, mean in means(NAMES, values).items():
        assert mean == pytest.approx(sum(row[name] for row in expected.values()) / len(expected))


def test_measures_worked_by_hand() -> None:
    # Grades a 3, b 1, c 2; ranked x a c. DCG = 3/log2(3) + 2/log2(4) = 1.892789 + 1 = 2.892789;
    # ideal = 3 + 2/log2(3) + 1/2 = 4.761860; quotient 0.607492. First relevant at 2. AP = (1/2 + 2/3) / 3 = 0.388889.
    values = per_query(parse(["nDCG@10", "RR@10", "AP"], 1), {"q": {"a": 3, "b": 1, "c": 2}}, {"q": ["x", "a", "c"]})
    assert values["q"] == pytest.approx({"nDCG@10": 0.607492, "RR@10": 0.5, "AP": 0.388889}, abs=1e-6)
    assert per_query(parse(["AP"], 3), {"q": {"a": 3, "b": 1}}, {"q": ["b", "a"]}) == {"q": {"AP": 0.5}}


@pytest.mark.parametrize("grades", [{"a": -1}, {"a": -2}, {"a": -2, "b": -7}])
def test_a_query_of_negative_grades_counts_zero(grades: dict[str, int]) -> None:
    """trec_eval's code ends in a segmentation fault, or never, on some of these."""
    names = ["nDCG@10", "nDCG", "AP", "RR@10", "R@100", "P@5", "Bpref", "infAP", "Judged@2"]
    values = per_query(parse(names, 1), {"q": grades, "other": {"a": 1}}, {"q": ["a", "x"], "other": ["a"]})
    assert values["q"] == dict.fromkeys(names, 0.0) | {"Judged@2": 0.5}
    assert values["other"]["nDCG@10"] == values["other"]["AP"] == 1.0


def test_a_negative_grade_beside_others_is_a_document_that_nobody_judged() -> None:
    """infAP (Yilmaz and Aslam 2006) counts one of the pool, not one outside; Bpref skips both."""
    values = {
        doc: per_query(parse(["infAP", "Bpref", "nDCG@10"], 1), {"q": {"a": 1, "n": 0} | {doc: grade}}, {"q": [doc, "a", "n"]})["q"]
        for doc, grade in (("pooled", -1), ("judged", 0))
    }
    assert values["pooled"] == pytest.approx({"infAP": 1 / 2 + 1 / 2 * 1 / 2, "Bpref": 1.0, "nDCG@10": 1 / math.log2(3)}, abs=1e-4)
    assert values["judged"] == pytest.approx({"infAP": 1 / 2, "Bpref": 0.0, "nDCG@10": 1 / math.log2(3)}, abs=1e-4)


def test_a_query_without_a_ranking_counts_zero() -> None:
    values = per_query(parse(["AP", "RR@10"], 1), {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}}, {"q1": ["a"], "q2": []})
    assert values["q2"] == values["q3"] == {"AP": 0.0, "RR@10": 0.0}
    assert means(["AP"], values) == {"AP": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    "name",
    [
        "nDGC@10",
        "nDCG@ten",
        "AP(",
        "AP(foo=1)",
        "",
        "import os",
        "alpha_nDCG@5",
        "Accuracy@10",
        "Hole",
        "Hole@0",
        "PairwiseErrors",
        "Coverage@k",
        "nDCG@0",
        "R@0",
        "P@0",
        "RR@0",
        "AP@0",
        "Judged@0",
        "RBP(p=0.8)@0",
        "P(judged_only=3)@5",
        "ERR(foo=1)@5",
        "RBP(p=0.0)@10",
        "RBP(p=1.5)",
        "RBP(p=1.0)@10",
        "Compat(p=1.5)",
        "IPrec@1.5",
        "P(rel=300000000)@5",
        "nDCG(gains={1:300000000})@10",
    ],
)
def test_unknown_measures_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(UserError) as error:
        validate(Evaluate, {"measures": ["AP", name]}, "params.yaml: evaluate")
    assert f"{name!r} is not a valid measure" in str(error.value)
    assert len(str(error.value)) < 400


def test_names_are_read_without_what_python_3_14_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Num", "Str", "NameConstant"):
        monkeypatch.delattr(ast, name, raising=False)
    names = ["nDCG@10", "RBP(p=0.8)", "P(rel=2, judged_only=True)@5", "nDCG(dcg='exp-log2')@10", "nDCG(gains={0: 0, 1: 5})@10"]
    params = [measure.params for measure in parse(names, 1).values()]
    assert params[1:3] == [{"p": 0.8, "rel": 1}, {"rel": 2, "judged_only": True, "cutoff": 5}]
    assert (params[3]["dcg"], params[4]["gains"]) == ("exp-log2", {0: 0, 1: 5})
    for name in ("R(rel=-1)@10", "nDCG(gains={**{}})@10", "R@(1+9)"):
        with pytest.raises(ValueError, match="is not a valid measure"):
            parse([name], 1)


def test_the_precision_at_full_recall_is_a_measure() -> None:
    values = per_query(parse(["IPrec@1.0"], 1), {"q": {"a": 1, "b": 1}}, {"q": ["a", "x", "y", "b"]})
    assert values["q"]["IPrec@1.0"] == pytest.approx(2 / 4)


def test_a_measure_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse(["AP", "AP(rel=1)"], 1)
    assert [str(measure) for measure in parse(["AP", "AP(rel=1)"], 2).values()] == ["AP(rel=2)", "AP"]


@pytest.mark.skipif(not TREC.exists(), reason="the shared TREC DL 2020 runs are not available")
@pytest.mark.parametrize(("system", "figures"), [("BM25", (0.4936, 0.2930, 0.8103, 0.6187)), ("ANCE", (0.6447, 0.4070, 0.7737, 0.7898))])
def test_measures_equal_the_published_trec_dl_2020(system: str, figures: tuple[float, ...]) -> None:
    measures = ["nDCG@10", "AP", "R@1000", "RR"]
    values = evaluate_files(TREC / f"{system}.2020.res.gz", TREC / "qrels.dl20-passage.txt", measures, 2)
    assert {name: round(value, 4) for name, value in values.items()} == dict(zip(measures, figures, strict=True))


def test_a_count_of_what_was_retrieved_counts_all() -> None:
    """As trec_eval's num_ret; `rel=1` makes it num_rel_ret. RBP is of binary grades, as its authors define it."""
    values = per_query(parse(["NumRet", "NumRet(rel=1)", "RBP(p=0.5)"], 1), {"q": {"a": 2, "b": 0}}, {"q": ["x", "a", "b", "y"]})
    assert values["q"] == {"NumRet": 4, "NumRet(rel=1)": 1, "RBP(p=0.5)": 0.25}
