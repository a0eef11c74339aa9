"""Negatives close to a positive are discarded, and positives ranked, as plain Python over lists does it."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.tables.schemas import RANKED
from tasks.mine import guard
from tasks.mine.guard import filter_negatives, ranked_positives, thresholds

Row = tuple[str, str, int, float]


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 4, schema=RANKED)


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize(("depth", "skip"), [(1, 0), (3, 0), (3, 2), (50, 1), (50, 9)])
def test_what_scores_above_the_bound_is_discarded_before_ranks_are_given(
    depth: int, skip: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores on a grid, so that some equal the bound; queries and whole tables with nothing found, or nothing left."""
    monkeypatch.setattr(guard, "QUERY_BLOCK", block)
    draw = random.Random(10 * depth + skip)
    queries = draw.sample([f"q{n}" for n in range(99)], 60)
    bound = [draw.choice([math.inf, -1.0, draw.randint(0, 9) / 2]) for _ in queries]
    lists = [sorted((draw.randint(0, 9) / 2 for _ in range(draw.choice([0, 0, 1, 4, 12]))), reverse=True) for _ in queries]
    parts, expected, place = list[pa.Table](), list[list[Row]](), 0
    while place < len(queries):
        part_rows, left = list[Row](), list[Row]()
        for number in range(place, min(place + draw.choice([1, 2, 9]), len(queries))):
            query, place = queries[number], number + 1
            query_rows = [(query, f"d{n}", n + 1, score) for n, score in enumerate(lists[number])]
            part_rows += query_rows
            kept = [row for row in query_rows if row[3] <= bound[number]][skip : skip + depth]
            left += [(query, doc, rank, score) for rank, (_, doc, _, score) in enumerate(kept, 1)]
        parts.append(table_of(part_rows))
        expected.append(left)
    filtered = list(filter_negatives(iter(parts), np.array(bound), pa.array(queries), depth, skip))
    assert [rows_of(part) for part in filtered] == expected and all(part.schema == RANKED for part in filtered)


def test_ids_of_queries_are_searched_from_the_table_before_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With millions of queries, a search of all ids for each table would be most of the work."""
    searched_sizes: list[int] = []
    genuine = guard.pc.index_in

    def index_in(names: pa.ChunkedArray, value_set: pa.Array) -> pa.ChunkedArray:
        searched_sizes.append(len(value_set))
        return genuine(names, value_set=value_set)

    monkeypatch.setattr(guard, "pc", SimpleNamespace(index_in=index_in))
    monkeypatch.setattr(guard, "QUERY_BLOCK", 4)
    queries = [f"q{n}" for n in range(50)]
    tables = [table_of([(query, "d", 1, 1.0) for query in queries[n : n + 4]]) for n in (0, 4, 8, 30, 36)]
    assert len(list(filter_negatives(tables, np.full(50, math.inf), pa.array(queries), 1, 0))) == 5
    assert searched_sizes == [4, 4, 4, 4, 8, 16, 32, 4, 8]  # 18 queries without a negative, then two


@pytest.mark.parametrize("relative", [None, 0.0, 0.25])
@pytest.mark.parametrize("absolute", [None, 0.0, 1.5])
def test_the_bound_is_the_lowest_of_the_margins_below_the_best_positive(relative: float | None, absolute: float | None) -> None:
    draw = random.Random(1)
    pairs = [(draw.randrange(20), draw.randint(-20, 20) / 2) for _ in range(30)]
    query, scores = np.array([q for q, _ in pairs]), np.array([score for _, score in pairs], dtype=np.float32)
    expected = []
    for number in range(20):
        best = max((score for q, score in pairs if q == number), default=None)
        margins = [relative * abs(best) if best is not None and relative is not None else None, absolute]
        expected.append(min((best - margin for margin in margins if best is not None and margin is not None), default=math.inf))
    assert thresholds(query, scores, 20, relative, absolute).tolist() == expected
    assert math.inf in expected and (len({*expected}) > 1) == (relative is not None or absolute is not None)


def test_positives_are_ranked_by_query_score_and_document() -> None:
    draw = random.Random(1)
    pairs = draw.sample([(q, d) for q in range(9) for d in range(9) if q != 4], 50)
    scored = [(q, d, float(draw.randint(0, 3))) for q, d in pairs]
    query, document, scores = (np.array(column) for column in zip(*scored, strict=True))
    expected = []
    for number in range(9):
        by_score = sorted((-score, d) for q, d, score in scored if q == number)
        expected += [(f"q{number}", f"d{d}", rank, -score) for rank, (score, d) in enumerate(by_score, 1)]
    ids = [pa.array([f"{kind}{n}" for n in range(9)]) for kind in "qd"]
    assert rows_of(ranked_positives(query, document, scores.astype(np.float32), *ids)) == expected
