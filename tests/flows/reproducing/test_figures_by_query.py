"""Figures by query of two versions: a mean alone would hide that queries swap."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.reproducing.closeness import distance


def apart(folder: Path, old: dict[str, list[object]], new: dict[str, list[object]]) -> float | None:
    for name, columns in (("old", old), ("new", new)):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return distance("dev.parquet", folder / "old.parquet", folder / "new.parquet")


QUERIES: list[object] = ["q1", "q2"]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"query": QUERIES, "RR": [1.0, 0.0], "AP": [0.5, 0.5]}, 0.0),
        ({"query": ["q2", "q1"], "RR": [0.0, 1.0], "AP": [0.5, 0.5]}, 0.0),
        ({"query": QUERIES, "RR": [0.0, 1.0], "AP": [0.5, 0.5]}, 1.0),
        ({"query": QUERIES, "RR": [1.0, 0.0], "AP": [0.5, 0.75]}, 0.125),
        ({"query": ["q1", "q3"], "RR": [1.0, 0.0], "AP": [0.5, 0.5]}, math.inf),
        ({"query": ["q1"], "RR": [1.0], "AP": [0.5]}, math.inf),
        ({"query": QUERIES, "RR": [1.0, 0.0]}, math.inf),
        ({"query": QUERIES, "RR": [math.nan, 0.0], "AP": [0.5, 0.5]}, math.inf),
    ],
)
def test_figures_by_query_are_apart_by_the_mean_of_their_differences(tmp_path: Path, new: dict[str, list[object]], expected: float) -> None:
    assert apart(tmp_path, {"query": QUERIES, "RR": [1.0, 0.0], "AP": [0.5, 0.5]}, new) == expected


def test_other_tables_are_not_measured(tmp_path: Path) -> None:
    texts: dict[str, list[object]] = {"query": QUERIES, "text": ["a", "b"]}
    assert apart(tmp_path, texts, texts) is None
