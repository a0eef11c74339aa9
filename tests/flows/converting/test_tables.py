"""A corpus, queries, and qrels beside training files, each form; what is none is refused with its line."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.converting.forms import Passage
from flows.converting.tables import Judgment, Query, documents, judgments, queries
from tasks.core.errors import UserError


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "form", "passage"),
    [
        ({"docid": 1, "title": "T", "text": "x"}, "Tevatron", Passage("1", "T", "x")),
        ({"docid": "a b", "text": "x"}, "Tevatron", Passage("a b", "", "x")),
        ({"id": "1", "contents": "x", "vector": [1]}, "Pyserini", Passage("1", "", "x")),
        ({"_id": "1", "title": None, "text": "x", "metadata": {}}, "BEIR", Passage("1", "", "x")),
        ({"text": "x"}, "texts alone", Passage(None, "", "x")),
    ],
)
def test_a_corpus(tmp_path: Path, row: dict[str, Any], form: str, passage: Passage) -> None:
    path = write(tmp_path / "corpus.jsonl", row)
    result = documents(path)
    assert (result[0], list(result[1])) == (form, [(f"{path}:1", passage)])


def test_a_corpus_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"docid": [1, 2], "text": ["x", "y"], "image": [b"", b""]}), path)
    assert [passage for _, passage in documents(path)[1]] == [Passage("1", "", "x"), Passage("2", "", "y")]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("7\twho is\n\nq8\t what \n", "tab-separated"),
        ('{"query_id": 7, "query": "who is"}\n\n{"query_id": "q8", "query": " what "}\n', "Tevatron"),
        ('{"query_id": 7, "query_text": "who is"}\n\n{"query_id": "q8", "query_text": " what "}\n', "Tevatron"),
        ('{"_id": "7", "text": "who is"}\n\n{"_id": "q8", "text": " what "}\n', "BEIR"),
    ],
)
def test_queries(tmp_path: Path, text: str, form: str) -> None:
    path = tmp_path / "queries"
    path.write_text(text)
    result = queries(path)
    assert (result[0], list(result[1])) == (form, [Query(f"{path}:1", "7", "who is"), Query(f"{path}:3", "q8", " what ")])


def test_qrels(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d1 2\nq1\tQ0\td2\t0\nq1 0  d\u00a03\u30004 \t1 \n", encoding="utf-8")
    rows = [(row.doc, row.grade) for row in judgments(path)]
    assert rows == [("d1", 2), ("d2", 0), ("d\u00a03\u30004", 1)], "an id may contain other spaces than ASCII's"
    assert next(judgments(path)) == Judgment(f"{path}:1", "q1", "d1", 2)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (documents, '{"id": 1, "text": "x"}', "x:1: found id, text, expected docid and text (Tevatron), id and contents (Pyserini)"),
        (documents, '{"docid": null, "text": "x"}', "x:1: found no docid, expected a string or an integer"),
        (documents, '{"docid": 1, "text": null}', "x:1: found no text, expected a string"),
        (documents, '{"docid": 1, "text": "x"}\n{"docid": 1}', "x:2: found no text"),
        (documents, '{"text": 1}', "x:1: found text 1, expected a string"),
        (queries, '{"qid": 1, "text": "x"}', "x:1: found qid, text, expected query_id and query (Tevatron), or _id and text (BEIR)"),
        (queries, "q1 who", "x:1: found 1 column, expected 2 separated by tabs (query, text)"),
        (queries, "q1\ta\tb", "x:1: found 3 columns, expected 2"),
        (queries, "\ta", "x:1: found query id '', expected a non-empty id"),
        (queries, "q\0\ta", "x:1: found query id"),
        (judgments, "q1 d1 1", "x:1: found 3 columns, expected 4 separated by blanks or tabs (query, 0, document, grade)"),
        (judgments, "q1 0 d1 1\nq1 0 d1 x", "x:2: found grade 'x', expected an integer up to 1,000"),
        (judgments, "q1 0 d1 1.5", "x:1: found grade '1.5'"),
    ],
)
def test_wrong_lines_are_refused(tmp_path: Path, read: Any, text: str, message: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        result = read(path)
        list(result[1] if isinstance(result, tuple) else result)
    assert message in str(error.value)


@pytest.mark.parametrize("row", [{"doc_id": "1", "title": "T", "text": "x"}, {"title": "T", "text": "x"}])
def test_a_corpus_of_other_keys_loses_none_of_them(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"corpus.jsonl:1: found {', '.join(row)}, expected docid and text \(Tevatron\)"):
        documents(write(tmp_path / "corpus.jsonl", row))


def test_answers_and_metadata_of_queries_are_kept(tmp_path: Path) -> None:
    extra = {"answers": ["a"], "metadata": {"kind": "new"}}
    path = write(tmp_path / "queries.jsonl", {"_id": "1", "text": "who is", **extra})
    assert [query.more for query in queries(path)[1]] == [extra]
