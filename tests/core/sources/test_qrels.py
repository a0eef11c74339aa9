"""Weights of qrels, and the order of their columns."""

import pytest

from tasks.core.sources.qrels import column_order_error, weight_of


@pytest.mark.parametrize(("cell", "weight"), [("1", 1.0), (" 0.5", 0.5), ("1e-30", 1e-30), ("1e30", 1e30)])
def test_weights(cell: str, weight: float) -> None:
    assert weight_of(cell) == weight


@pytest.mark.parametrize("cell", ["0", "-1", "nan", "inf", "1e-50", "1e39", "", "x", "True", "[1]"])
def test_what_is_no_weight(cell: str) -> None:
    assert weight_of(cell) is None


@pytest.mark.parametrize(
    ("cells", "swapped"),
    [
        (["query-id", "corpus-id", "score"], False),
        (["qid", "pid", "label"], False),
        (["corpus-id", "query-id", "score"], True),
        (["Corpus_ID", "score", "x"], True),
        (["docid", "query_id"], True),
        ([], False),
    ],
)
def test_a_heading_in_another_order(cells: list[str], swapped: bool) -> None:
    expected = f"found columns {', '.join(cells)}, expected query-id, corpus-id, score in this order"
    assert column_order_error(cells) == (expected if swapped else "")
