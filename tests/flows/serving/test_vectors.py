"""The rows of vectors.parquet: numbers, ids, passages, texts, and how much memory they take."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.serving import vectors
from tasks.core.models.export import Export, write_record
from tasks.core.retrieval.embeddings import Manifest, open_embeddings, write_manifest
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS


@pytest.mark.parametrize(("limit", "parts"), [(1 << 26, [2, 4]), (20, [2, 2, 2]), (1, [1] * 6)])
def test_passages_have_numbers_and_rows_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, parts: Any) -> None:
    """Three documents of 1, 3 and 2 passages over two shards; texts are read a part at a time.

    A title and its text are 8 bytes. Those of a long document's passages, together, may be more than Arrow's 2 GiB of an array.
    """
    monkeypatch.setattr(vectors, "TEXT_BYTES", limit)
    folder, tokens = tmp_path / "embeddings", tmp_path / "tokens"
    for path in (folder, tokens):
        path.mkdir()
    rows = [{"id": f"d{n}", "title": f"t{n}", "text": f"text {n}"} for n in range(3)]
    write_table(tmp_path / "documents.parquet", DOCUMENTS, [pa.Table.from_pylist([row], DOCUMENTS) for row in rows])
    write_table(tokens / "ids.parquet", pa.schema([("id", pa.string())]), [pa.table({"id": ["d0", "d1", "d2"]})])
    np.save(tokens / "owners.npy", np.array([0, 1, 1, 1, 2, 2], dtype=np.int32))
    drawn = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.save(folder / "00000.npy", drawn[:2])
    np.save(folder / "00001.npy", drawn[2:])
    write_manifest(folder, Manifest(6, 4, "float32", [2, 4], "", "", 8, ""), tokens)
    tables = list(vectors.rows(open_embeddings(folder), tmp_path / "documents.parquet"))
    assert [len(table) for table in tables] == parts
    table = pa.concat_tables(tables)
    assert table["row"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table["id"].to_pylist() == ["d0", "d1", "d1", "d1", "d2", "d2"]
    assert table["passage"].to_pylist() == [0, 0, 1, 2, 0, 1]
    assert table["text"].to_pylist() == ["text 0", "text 1", "text 1", "text 1", "text 2", "text 2"]
    assert np.array_equal(np.stack(table["vector"].to_numpy()), drawn)


def test_a_part_of_the_vectors_takes_no_copy_of_all_owners(tmp_path: Path) -> None:
    folder, tokens, count = tmp_path / "embeddings", tmp_path / "tokens", 1 << 20
    for path in (folder, tokens):
        path.mkdir()
    write_table(tokens / "ids.parquet", pa.schema([("id", pa.string())]), [pa.table({"id": ["d0", "d1"]})])
    np.save(tokens / "owners.npy", np.repeat(np.arange(2, dtype=np.int32), count // 2))
    np.save(folder / "00000.npy", np.zeros((count, 1), dtype=np.float16))
    write_manifest(folder, Manifest(count, 1, "float16", [count], "", "", 8, ""), tokens)
    parts = vectors.rows(open_embeddings(folder), None)
    next(parts)
    tracemalloc.start()
    try:
        assert next(parts)["passage"][0].as_py() == vectors.ROWS
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * count, "the owners alone, mapped, are 4 bytes each"


def test_each_model_of_a_fusion_has_a_file_of_vectors(tmp_path: Path) -> None:
    settings = {"prefix": "", "max_length": 8}
    encoders = {"star": ("encoder", "index"), "adore1": ("encoder.adore1", "index.adore1")}
    (tmp_path / "out").mkdir()
    write_record(tmp_path / "out", Export("both", encoders, settings, settings))

    def get(path: str, place: Path) -> None:
        place.mkdir()
        tokens = tmp_path / path / "tokens"
        tokens.mkdir(parents=True)
        write_table(tokens / "ids.parquet", pa.schema([("id", pa.string())]), [pa.table({"id": ["d0"]})])
        np.save(tokens / "owners.npy", np.zeros(1, dtype=np.int32))
        np.save(place / "00000.npy", np.full((1, 2), path.endswith("adore1"), dtype=np.float32))
        write_manifest(place, Manifest(1, 2, "float32", [1], "", "", 8, ""), tokens)

    lock = {f"encode@{name}": {"outs": [{"path": f"data/embeddings/{name}"}]} for name in encoders}
    vectors.write_vectors(get, lock, tmp_path / "out", documents=False)
    found = {path.name: pq.read_table(path)["vector"].to_pylist() for path in (tmp_path / "out").glob("*.parquet")}
    assert found == {"vectors.parquet": [[0.0, 0.0]], "vectors.adore1.parquet": [[1.0, 1.0]]}
