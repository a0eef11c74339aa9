"""The rule for the best system, on cases worked out by hand."""

import itertools

import pytest

from tasks.core.metrics.selection import best_of, best_system, least_grade

SECTIONS = {
    "mine": {"warmup": {"depth": 9}},
    "rescore": {"over": {"run": "bm25", "round": "star", "encoder": "star"}},
    "rerank": {"small": {"run": "star", "reranker": "cross"}},
    "rerankers": {"cross": {"negatives": "warmup"}},
    "fuse": {"hybrid": {"first": "bm25", "second": "warmup"}, "both": {"first": "hybrid", "second": "tower"}},
    "adore": {"tower": {"round": "warmup", "negatives": "none"}},
    "rounds": {
        "star": {"init": "base", "negatives": "warmup"},
        "twin": {"init": "base", "negatives": "bm25"},
        "warmup": {"init": "base", "negatives": "bm25"},
    },
}
SIMPLER_FIRST = ["bm25", "twin", "warmup", "star", "hybrid", "over", "tower", "small", "both", "unknown"]


@pytest.mark.parametrize(("simpler", "other"), itertools.combinations(SIMPLER_FIRST, 2))
def test_a_tie_goes_to_the_simpler_system(simpler: str, other: str) -> None:
    """Fewer towers, then fewer entries it is made from (star uses warmup's negatives), then the place in params.yaml."""
    for names in ((simpler, other), (other, simpler)):
        assert best_system(dict.fromkeys(names, 0.5), SECTIONS) == simpler
        assert best_system({simpler: 0.5, other: 0.5001}, SECTIONS) == other, "no tie"
        assert best_system({simpler: 0.1 + 0.2, other: 0.3}, SECTIONS) == simpler, "equal except for the order of additions"
        assert best_system({simpler: 0.3, other: 0.1 + 0.2}, SECTIONS) == simpler
        assert best_system({simpler: 0.5, other: 0.5 + 0.9e-10}, SECTIONS) == simpler
        assert best_system({simpler: 0.5, other: 0.5 + 1.1e-10}, SECTIONS) == other


def test_the_least_grade_of_a_split() -> None:
    assert least_grade("dev", {}) == least_grade("dev", {"evaluate": None}) == 1
    assert least_grade("dev", {"evaluate": {"relevance": 2}}) == 2
    assert [least_grade(split, {"evaluate": {"relevance": {"test": 3}}}) for split in ("dev", "test")] == [1, 3]


def test_invalid_parameters_do_not_raise_here() -> None:
    assert best_system({"b": 1.0, "a": 1.0}, {}) == "a"
    assert best_system({"b": 1.0, "a": 1.0}, {"rounds": None, "rerank": {"a": None, "b": {"run": "b"}}}) == "a"
    assert best_system({"a": 1.0, "b": 1.0}, {"rounds": {"a": {"init": "b"}, "b": {"init": "a"}}}) == "a"
    with pytest.raises(ValueError, match="empty"):
        best_of({}, str)
