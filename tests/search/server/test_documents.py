"""Texts by id, over several batches, with ids in any order and script."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.tables import parquet
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.search.server.documents import Documents


def test_every_document_is_found_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    ids = ["", "a", "B", "é", "z", "語", "😀", "\uffff", "10", "9", *(f"d{n}" for n in range(40))]
    random.Random(0).shuffle(ids)
    rows = [{"id": name, "title": f"title of {name}", "text": name * 3} for name in ids]
    write_table(tmp_path / "documents.parquet", DOCUMENTS, [pa.Table.from_pylist(rows, DOCUMENTS)])
    documents = Documents(tmp_path / "documents.parquet")
    assert len(documents) == len(ids) and documents.ids.to_pylist() == ids
    assert documents.texts(ids[::-1]) == [(f"title of {name}", name * 3) for name in ids[::-1]]
    for doc in ("b", "zz", "😁", "d40", "\x00"):
        with pytest.raises(UserError, match="the index is from another corpus"):
            documents.texts([doc])
    assert [path.name for path in tmp_path.iterdir()] == ["documents.parquet"]
