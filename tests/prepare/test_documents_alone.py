"""With `queries: pseudo` a source needs neither queries nor qrels; without it, the error says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.parameters.sources import list_dataset
from tasks.core.errors import UserError

LINES = [{"_id": "d1", "title": "Fish", "text": "red fish"}, {"_id": "d2", "title": "", "text": "blue fish"}]
EXPECTED = [("d1", "Fish", "red fish"), ("d2", "", "blue fish")]


def write_beir(folder: Path) -> None:
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))


def write_csv(folder: Path) -> None:
    (folder / "corpus.csv").write_text("id,title,text\nd1,Fish,red fish\nd2,,blue fish\n")


def write_parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(LINES), folder / "corpus.parquet")


@pytest.mark.parametrize("write", [write_beir, write_csv, write_parquet])
def test_documents_alone_are_a_corpus_where_queries_are_made(write: Callable[[Path], None], prepare: Any, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder)
    spec = f"{write.__name__.removeprefix('write_')}:{folder}"
    prepared = prepare(spec, needs_qrels=False)
    assert prepared.documents == EXPECTED and prepared.stats["documents"]["count"] == 2
    assert prepared.queries == prepared.qrels == {"train": [], "dev": [], "test": []}
    assert len(list_dataset(spec, needs_qrels=False).files) == 1
    with pytest.raises(UserError, match=r"qrels.*queries=pseudo"):
        prepare(spec)
    with pytest.raises(UserError, match=r"qrels.*queries=pseudo") if write is not write_parquet else pytest.MonkeyPatch.context():
        list_dataset(spec)


def test_queries_that_nobody_judged_are_not_read(prepare: Any, tmp_path: Path) -> None:
    write_beir(tmp_path)
    (tmp_path / "queries.jsonl").write_text("not JSON\n")
    assert prepare(f"beir:{tmp_path}", needs_qrels=False).documents == EXPECTED


def test_judged_queries_are_read_as_ever(prepare: Any, tmp_path: Path) -> None:
    write_beir(tmp_path)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "which fish"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    prepared = prepare(f"beir:{tmp_path}", needs_qrels=False)
    assert prepared.queries["test"] == [("q", "which fish", [])] and prepared.qrels["test"] == [("q", "d2", 1)]
    spec = f"beir:{tmp_path}"
    assert list_dataset(spec, needs_qrels=False) == list_dataset(spec)
