"""Which files are found to have a text."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.forgetting import text_search


def test_texts_are_found_in_tables_pages_and_packed_files(tmp_path: Path) -> None:
    text = 'A "quoted" text & more, long enough to be looked for'
    pq.write_table(pa.table({"id": ["a"], "text": [text]}), tmp_path / "table.parquet")
    pq.write_table(pa.table({"id": ["a"], "text": ["another"]}), tmp_path / "other.parquet")
    (tmp_path / "line.jsonl").write_text(json.dumps({"text": text}))
    (tmp_path / "page.html").write_text("<p>A &quot;quoted&quot; text &amp; more, long enough to be looked for</p>")
    (tmp_path / "empty").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/plain").write_text(text)
    subprocess.run(["gzip", "-k", "line.jsonl"], cwd=tmp_path, check=True)
    paths = text_search.files_with_texts(tmp_path, text_search.needles([text]))
    assert {path.name for path in paths} == {"table.parquet", "line.jsonl", "line.jsonl.gz", "page.html"}
    assert list(text_search.files_with_texts(tmp_path, text_search.needles([]))) == []
