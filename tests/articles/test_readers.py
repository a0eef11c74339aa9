"""Pages of sources that are plain text."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.articles.readers import read_jsonl, read_parquet
from tasks.core.errors import UserError


def test_the_id_of_a_line(tmp_path: Path) -> None:
    """A null is a missing id, and the line number stands for that."""
    heads = ['"id": "a", "_id": "b"', '"id": null, "_id": "b"', '"id": null', '"title": "t"', '"id": 0']
    (tmp_path / "x.jsonl").write_text("".join(f'{{{head}, "text": "words"}}\n' for head in heads))
    assert [page.id for page in read_jsonl(tmp_path / "x.jsonl")] == ["a", "b", "3", "4", "0"]


def test_a_repeated_column_is_refused(tmp_path: Path) -> None:
    columns = {name: pa.array(["a"]) for name in ("id", "title", "text", "url")}
    table = pa.table(columns).append_column("url", columns["url"])
    pq.write_table(table, tmp_path / "x.parquet")
    assert [page.text for page in read_parquet(tmp_path / "x.parquet")] == ["a"]
    pq.write_table(table.append_column("text", columns["text"]), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x.parquet: found column text more than once, expected it once; rename or drop one$"):
        list(read_parquet(tmp_path / "x.parquet"))
