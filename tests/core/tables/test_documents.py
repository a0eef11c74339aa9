"""A few documents of a corpus of several row groups."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.tables.documents import shortened, texts_of
from tasks.core.tables.schemas import DOCUMENTS


def test_only_documents_that_are_there(tmp_path: Path) -> None:
    names = [f"d{n}" for n in range(10)]
    table = pa.table([names, [f"title {n}" for n in range(10)], [f"text {n}" for n in range(10)]], schema=DOCUMENTS)
    pq.write_table(table, tmp_path / "documents.parquet", row_group_size=3)

    def texts(*doc_ids: str) -> dict[str, tuple[str, str]]:
        return texts_of(tmp_path / "documents.parquet", doc_ids)

    assert texts("d9", "d0", "gone", "d4") == {f"d{n}": (f"title {n}", f"text {n}") for n in (0, 4, 9)}
    assert texts("gone") == texts() == {}
    with pytest.raises(UserError, match=r"none\.parquet: not found"):
        texts_of(tmp_path / "none.parquet", ["d0"])


def test_a_long_text_is_shortened_in_any_script() -> None:
    assert shortened("two  words\n", 20) == "two words"
    assert shortened("some words and then some more", 20) == "some words and ..."
    assert shortened("語" * 400, 330) == "語" * 327 + " ..."
