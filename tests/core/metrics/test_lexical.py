"""Which systems use BM25."""

from tasks.core.metrics.lexical import without_bm25

SECTIONS = {
    "rounds": {"star": {"init": "base", "negatives": "bm25"}},
    "fuse": {"hybrid": {"first": "bm25", "second": "star"}, "twice": {"first": "star", "second": "hybrid"}},
    "rerank": {"slow": {"run": "twice"}, "best": {"run": "star"}},
    "rescore": None,
}


def test_a_system_that_uses_bm25s_lists_is_left_out_and_one_trained_on_its_negatives_is_not() -> None:
    assert without_bm25(["bm25", "star", "hybrid", "twice", "slow", "best"], SECTIONS) == ["star", "best"]
    assert without_bm25(["bm25", "hybrid"], SECTIONS) == ["bm25", "hybrid"], "nothing else is left"
