"""Ids with too many bytes for one array of strings are read all the same, and order and name documents as others do."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.lexical import search
from tasks.core.retrieval.ranked import id_order, ranked_tables
from tasks.core.tables import ids
from tasks.core.tables.ids import IDS, read_ids
from tasks.core.tables.parquet import write_table
from tasks.mix.interleave import random_source

NAMES = ["d9", "d10", "größe", "d2", "d1"]


@pytest.fixture
def large_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Array:
    monkeypatch.setattr(ids, "MOST_BYTES", 20)
    write_table(tmp_path / "ids.parquet", IDS, [pa.table([NAMES[:3]], schema=IDS), pa.table([NAMES[3:]], schema=IDS)])
    return read_ids(tmp_path / "ids.parquet")


def test_ids_of_more_bytes_than_an_array_can_have_are_large_strings(large_ids: pa.Array, tmp_path: Path) -> None:
    assert large_ids.type == pa.large_string() and large_ids.to_pylist() == NAMES
    write_table(tmp_path / "few.parquet", IDS, [pa.table([["a"]], schema=IDS)])
    assert read_ids(tmp_path / "few.parquet").type == pa.string()


def test_large_strings_order_and_name_documents(large_ids: pa.Array) -> None:
    small = pa.array(NAMES)
    np.testing.assert_array_equal(id_order(large_ids), id_order(small))
    assert search.id_order(large_ids).equals(search.id_order(small))
    owners, rows = np.arange(5, dtype=np.int32), np.array([[0, 1, 3], [4, 2, 0]])
    scores = np.array([[1.0, 1.0, 1.0], [3.0, 2.0, 1.0]], dtype=np.float32)
    actual, expected = (
        pa.concat_tables(ranked_tables(scores, rows, id_column.slice(0, 2), id_column, owners, 2)) for id_column in (large_ids, small)
    )
    assert actual.equals(expected) and actual["doc"].to_pylist() == ["d9", "d2", "d1", "größe"]
    drawn_large, drawn_small = (random_source(id_column, {0: {1}}, 4, 7)("q", 0) for id_column in (large_ids, small))
    assert [doc for doc, _ in drawn_large] == [doc for doc, _ in drawn_small] and len(drawn_large) == 4
