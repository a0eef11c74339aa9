"""Searching queries in parts gives the tables that searching them at once gives, bit for bit."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core import queries, search
from tasks.core.queries import ranked_queries
from tasks.core.search import MARGIN, exact_search, ranked_tables


@pytest.mark.parametrize("held", [1, 4 * (5 + MARGIN), 9 * (5 + MARGIN), 10**9])
def test_parts_of_the_queries_change_no_bit(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    asked, vectors = draw.normal(size=(19, 24)).astype(np.float32), draw.normal(size=(60, 24)).astype(np.float32)
    query_ids, ids = pa.array([f"q{n}" for n in range(19)]), pa.array([f"d{n}" for n in range(60)])
    owners = np.arange(60, dtype=np.int32)
    excluded = np.array([q * 60 + doc for q in range(19) for doc in draw.integers(0, 60, 20)])
    monkeypatch.setattr(search, "QUERY_BLOCK", 4)
    monkeypatch.setattr(queries, "QUERY_BLOCK", 4)
    monkeypatch.setattr(queries, "HELD", held)
    parts = []

    def found(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts.append(len(part))
        return exact_search(part, [(0, vectors[:31]), (31, vectors[31:])], 5, torch.device("cpu"))

    tables = list(ranked_queries(asked, found, 5, query_ids, ids, owners, 3, 1, excluded))
    assert parts == ([19] if held == 10**9 else [8, 8, 3] if held == 9 * (5 + MARGIN) else [4, 4, 4, 4, 3])
    whole = ranked_tables(*found(asked), query_ids, ids, owners, 3, 1, excluded)
    assert pa.concat_tables(tables).combine_chunks().equals(pa.concat_tables(whole).combine_chunks())
    assert sum(map(len, tables)) > 19
