"""Batches against plain loops: rows in order, sizes within bounds."""

import random
from itertools import pairwise

import pyarrow as pa
import pytest

from tasks.core.tables.batching import join_batches, split_batch

SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])


def table(rows: int, longest: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    columns = [[f"{n}" for n in range(rows)], *(["é" * rng.randint(0, longest) for _ in range(rows)] for _ in range(2))]
    return pa.table(columns, schema=SCHEMA)


@pytest.mark.parametrize("size", [1, 40, 10**6])
def test_cut_by_bytes(size: int) -> None:
    (batch,) = table(50, 20, size).to_batches()
    batch = batch.slice(3, 40)
    parts = list(split_batch(batch, ["title", "text"], size))
    assert [row for part in parts for row in part.to_pylist()] == batch.to_pylist()
    sizes = [[len((row["title"] + row["text"]).encode()) for row in part.to_pylist()] for part in parts]
    assert all(len(part) == 1 or sum(part) <= size for part in sizes)
    assert all(sum(part) + following[0] > size for part, following in pairwise(sizes)), "as many rows as fit"
    assert list(split_batch(batch.slice(0, 0), ["text"], size)) == []


def test_joined_to_rows() -> None:
    whole_table = table(100, 5, 0)
    parts = list(join_batches(whole_table.to_batches(max_chunksize=3), 10))
    assert [part.num_rows for part in parts] == [12] * 8 + [4]
    assert pa.concat_tables(parts).equals(whole_table)
    assert list(join_batches([], 10)) == []


def test_joined_to_bytes() -> None:
    whole_table = table(100, 50, 1)
    crumbs = whole_table.to_batches(max_chunksize=2)
    parts = list(join_batches(iter(crumbs), 10**6, 1000))
    assert pa.concat_tables(parts).equals(whole_table)
    most = max(crumb.nbytes for crumb in crumbs)
    assert all(1000 <= part.nbytes <= 1000 + 2 * most for part in parts[:-1]) and len(parts) > 3
