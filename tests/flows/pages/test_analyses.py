"""The page's analyses of several rounds, side by side."""

from collections.abc import Callable
from typing import Any

from flows.pages import analyses


def analysis(depth: int, shares: dict[int, float]) -> dict[str, Any]:
    bins = [{"from": start, "queries": share, "errors": share / 2} for start, share in shares.items()]
    return {
        "round": "w",
        "split": "dev",
        "queries": 10,
        "depth": 200,
        "bm25_overlap": None,
        "negatives_overlap": {},
        "pairwise_errors": {"total": 2.0, "top": 1.0, "depth": depth, "histogram": bins},
        "alignment": 0.5,
        "uniformity": {"queries": -2.0, "documents": -3.0},
        "curves": [],
        "gradients": {},
        "maps": [],
    }


ALL = {"a": analysis(100, {0: 0.5, 5: 0.25, 50: 0.25}), "b": analysis(1000, {0: 0.5, 2: 0.125, 10: 0.375})}


def test_errors_are_by_number_and_a_bin_without_queries_has_none(charts_of: Callable[..., Any]) -> None:
    """The axis was in the order of first appearance: 0, 5, 50, 2, 10."""
    charts = dict(charts_of(analyses.body(ALL)))
    rows = charts["share of queries by pairwise errors of a query"]["data"]["values"]
    assert [(row["name"], row["x"], row["y"]) for row in rows] == [
        *(("a", start, share) for start, share in (("0", 0.5), ("2", 0.0), ("5", 0.25), ("10", 0.0), ("50", 0.25))),
        *(("b", start, share) for start, share in (("0", 0.5), ("2", 0.125), ("5", 0.0), ("10", 0.375), ("50", 0.0))),
    ]
    errors = charts["share of errors by pairwise errors of a query"]["data"]["values"]
    assert [(row["x"], row["y"]) for row in errors[:5]] == [("0", 0.25), ("2", 0.0), ("5", 0.125), ("10", 0.0), ("50", 0.125)]


def test_each_analysis_has_the_depth_of_its_own_errors() -> None:
    body = analyses.body(ALL)
    assert [f'data-label="depth">{depth}<' in body for depth in ("100", "1,000")] == [True, True]
    assert "{" not in body.partition("Errors are pairwise errors")[2].partition("</p>")[0]
