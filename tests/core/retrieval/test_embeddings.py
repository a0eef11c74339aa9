"""Rows of any shards in any order, with the errors of a pass over all of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.retrieval.embeddings import Embeddings, Manifest, open_embeddings, write_manifest
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table

SHARDS = [3, 1, 0, 4]


def write_embeddings(folder: Path, vectors: np.ndarray) -> Embeddings:
    for number, part in enumerate(np.split(vectors, np.cumsum(SHARDS)[:-1])):
        np.save(folder / f"{number:05}.npy", part)
    tokens = folder / "tokens"
    tokens.mkdir()
    np.save(tokens / "owners.npy", np.arange(len(vectors), dtype=np.int32))
    write_table(tokens / "ids.parquet", IDS, [pa.table([[f"d{n}" for n in range(len(vectors))]], schema=IDS)])
    write_manifest(folder, Manifest(len(vectors), vectors.shape[1], str(vectors.dtype), SHARDS, "", "", 8, ""), tokens)
    return open_embeddings(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [[7, 0, 3, 3, 2, 4], [5], [], list(range(8))])
def test_rows_of_any_shards(rows: list[int], dtype: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(dtype)
    embeddings = write_embeddings(tmp_path, vectors)
    for _ in range(2):
        result = embeddings.take(np.array(rows, dtype=np.int64))
        assert result.dtype == np.float32 and result.shape == (len(rows), 5)
        np.testing.assert_array_equal(result, vectors[rows].astype(np.float32))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
def test_no_file_stays_open(tmp_path: Path) -> None:
    embeddings, before = write_embeddings(tmp_path, np.ones((8, 5), dtype=np.float32)), len(list(Path("/proc/self/fd").iterdir()))
    assert embeddings.take(np.arange(8)).sum() == 40
    assert len(embeddings.mapped) == 3 and len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_shard_that_has_changed_is_refused_when_it_is_read(tmp_path: Path) -> None:
    vectors = np.ones((8, 5), dtype=np.float32)
    embeddings = write_embeddings(tmp_path, vectors)
    np.save(tmp_path / "00003.npy", vectors[4:] + 1)
    np.testing.assert_array_equal(embeddings.take(np.array([3, 0])), vectors[:2])
    with pytest.raises(
        UserError, match=r"00003\.npy: unreadable shard \(its digest differs from the manifest's\); remove .* run encode again"
    ):
        embeddings.take(np.array([0, 4]))
