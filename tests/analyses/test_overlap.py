"""The overlap of sources of negatives, over a round that finds document n + 1 first for query n."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.analyses import __main__ as stage
from tasks.analyses.params import Analysis
from tasks.core.tables.judgments import DocumentLists, lists_of


def pairs(*rows: tuple[int, int]) -> DocumentLists:
    """The lists of four queries."""
    queries, documents = np.array(rows).T
    return lists_of(queries, documents, 4)


def test_queries_without_negatives_of_a_source_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    relevant = pairs((0, 0), (1, 0), (2, 0), (3, 0))
    data: Any = SimpleNamespace(
        relevant=lambda _: relevant,
        ids=Path("ids"),
        embeddings=SimpleNamespace(owners=lambda: np.arange(9)),
        vectors=lambda _, rows: rows,
    )
    monkeypatch.setattr(stage, "count_rows", lambda _: 9)
    monkeypatch.setattr(
        stage, "best_passages", lambda _search, rows, _owners, _depth: (None, np.array([[row + 1, row + 2] for row in rows]))
    )
    sources = {"half": pairs((0, 1), (0, 8), (2, 3), (2, 4)), "one": pairs((3, 7))}
    overlaps = stage.negatives_overlap(data, sources, 2, params=Analysis(round="star", negatives="bm25", depth=9))
    assert overlaps == {"half": (0.5 + 1) / 2, "one": 0}


def test_all_sources_are_compared_at_the_depth_of_the_shallowest() -> None:
    """Else BM25's 100 candidates, all of them among a model's own 200, would overlap by half."""
    deep, shallow, empty = (
        pairs((0, 1), (0, 2), (0, 3), (1, 4)),
        pairs((0, 1), (0, 2), (2, 4)),
        DocumentLists(np.zeros(5, int), np.zeros(0, int)),
    )
    assert stage.common_depth({"deep": deep, "shallow": shallow, "empty": empty}, 9) == 2
    assert stage.common_depth({"deep": deep, "shallow": shallow}, 1) == 1
    assert stage.common_depth({"empty": empty}, 9) == 9
