"""What is new between two corpora, counted by hand."""

from pathlib import Path

import pyarrow as pa

from flows.retraining.news import News, compare
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES

BEFORE = {"d1": ("", "one"), "d2": ("", "two"), "d3": ("a", "b"), "d4": ("", "four")}
ASKED = {"q1": "what", "q2": "who", "q3": "when", "q4": "where"}
JUDGED = [("q1", "d1", 1), ("q1", "d2", 2), ("q2", "d2", 1), ("q3", "d3", 0), ("q4", "d4", 1), ("q4", "d1", 0)]


def write_corpus(folder: Path, documents: dict[str, tuple[str, str]], queries: dict[str, str], qrels: list[tuple[str, str, int]]) -> Path:
    rows = [[*documents], *([text[n] for text in documents.values()] for n in (0, 1))]
    write_table(folder / "documents.parquet", DOCUMENTS, [pa.table(rows, schema=DOCUMENTS)])
    table = pa.table([[*queries], [*queries.values()], [[] for _ in queries]], schema=QUERIES)
    write_table(folder / "queries/train.parquet", QUERIES, [table])
    write_table(folder / "qrels/train.parquet", QRELS, [pa.table([list(column) for column in zip(*qrels, strict=True)], schema=QRELS)])
    return folder


def test_new_changed_and_gone(tmp_path: Path) -> None:
    before = write_corpus(tmp_path / "before", BEFORE, ASKED, JUDGED)
    assert compare(before, before) == News(0, 0, 4, 0, 3, ("q1", "q2", "q4")), "q3 has no relevant document"
    documents = {"d5": ("", "one"), **BEFORE, "d3": ("", "a b")}  # a new id, another title; another order
    del documents["d4"]
    queries = ASKED | {"q2": "whom", "q5": "why"}
    judgments = [("q1", "d2", 2), ("q1", "d1", 1), ("q1", "d3", 0), ("q2", "d2", 1), ("q3", "d3", 1), ("q4", "d4", 2), ("q5", "d5", 1)]
    news = compare(before, write_corpus(tmp_path / "now", documents, queries, judgments))
    assert news == News(documents=2, removed=2, documents_before=4, queries=4, queries_before=3, known=("q1",))
    assert news.line == "4 new training queries (3 before), 2 new documents (4 before), 2 gone or changed"


def test_a_corpus_without_training_queries(tmp_path: Path) -> None:
    before, now = (write_corpus(tmp_path / name, BEFORE, ASKED, JUDGED) for name in ("before", "now"))
    (before / "qrels/train.parquet").unlink()
    assert compare(before, now) == News(0, 0, 4, 3, 0, ())
