"""Samples against a corpus whose judgments are known: what a query brings, what is left, and that stage prepare reads it."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.previewing.sample import Part, draw
from tasks.core.errors import UserError
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.core.tables.weights import WEIGHTS
from tasks.prepare.readers.parquet import read

DOCS, TRAIN, DEV = 3000, 800, 60
Qrel = tuple[str, str, int]


def table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema)


def write_corpus(corpus: Path, qrels: dict[str, list[Qrel]]) -> Path:
    """A corpus of DOCS documents, d0 and so on, whose queries are those of the qrels."""
    for folder in ("queries", "qrels"):
        (corpus / folder).mkdir(parents=True, exist_ok=True)
    batches = [table(DOCUMENTS, [(f"d{n}", "", f"text {n}") for n in range(start, start + 500)]) for start in range(0, DOCS, 500)]
    write_table(corpus / "documents.parquet", DOCUMENTS, batches)
    for split, rows in qrels.items():
        texts = [(query, f"{query} asks", [query]) for query in dict.fromkeys(row[0] for row in rows)]
        write_table(corpus / f"queries/{split}.parquet", QUERIES, [table(QUERIES, texts)])
        write_table(corpus / f"qrels/{split}.parquet", QRELS, [table(QRELS, list(rows))])
    return corpus


@pytest.fixture
def judgments() -> dict[str, list[Qrel]]:
    """Train queries with two relevant documents and one of grade 0; dev queries with fourteen, of grades 1 and 2."""
    rng = random.Random(1)
    train = [(f"t{q}", f"d{doc}", grade) for q in range(TRAIN) for doc, grade in zip(rng.sample(range(DOCS), 3), (1, 2, 0), strict=True)]
    dev = [(f"v{q}", f"d{doc}", 1 + (n < 4)) for q in range(DEV) for n, doc in enumerate(rng.sample(range(DOCS), 14))]
    return {"train": train, "dev": dev, "test": [("x1", "d1", 1)]}


def read_split(sample: Path, split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    texts = read_table(sample / f"queries/{split}.parquet", QUERIES).to_pylist()
    return {row["id"]: row for row in texts}, pq.read_table(sample / f"qrels/{split}.parquet").to_pylist()


def test_queries_bring_what_answers_them_and_other_documents_fill_the_rest(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus", judgments), tmp_path / "out"
    sample = draw(corpus, tmp_path / "none.parquet", 1000, to=out, trains=True)
    assert (sample.documents, sample.held_out) == (Part(1000, DOCS), False)
    assert sample.queries == {"dev": Part(50, DEV), "train": Part(500, TRAIN)}
    documents = read_table(out / "documents.parquet", DOCUMENTS).to_pylist()
    ids = {row["id"] for row in documents}
    assert len(ids) == 1000 and all(row["text"] == f"text {row['id'][1:]}" for row in documents)
    assert [int(row["id"][1:]) for row in documents] == sorted(int(name[1:]) for name in ids), "in the order of the corpus"
    assert not (out / "qrels/test.parquet").exists() and not (out / "queries/test.parquet").exists()
    for split, least in (("dev", 10), ("train", 1)):
        texts, rows = read_split(out, split)
        assert {row["query"] for row in rows} == set(texts) and len(texts) == sample.queries[split].drawn
        assert all(text == {"id": query, "text": f"{query} asks", "answers": [query]} for query, text in texts.items())
        for query in texts:
            grades = {doc: grade for other, doc, grade in judgments[split] if other == query}
            sampled = {row["doc"]: row["grade"] for row in rows if row["query"] == query}
            assert sampled == {doc: grade for doc, grade in grades.items() if doc in ids}, "all judgments of the documents that are there"
            assert sum(grade > 0 for grade in sampled.values()) >= least
            assert {doc for doc, grade in grades.items() if grade == 2} <= ids, "the highest grades come first"
    source = read(out)
    assert len(list(source.documents())) == 1000 and source.queries.keys() == source.qrels.keys() == {"train", "dev"}


def test_the_same_data_give_the_same_sample_and_a_larger_one_has_its_queries(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", judgments)
    for name, documents in (("a", 400), ("b", 400), ("c", 800)):
        draw(corpus, tmp_path / "none.parquet", documents, to=tmp_path / name, trains=True)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 5 and all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    for split in ("dev", "train"):
        assert read_split(tmp_path / "a", split)[0].items() <= read_split(tmp_path / "c", split)[0].items()


def test_a_sample_of_more_than_there_is_has_everything(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    sample = draw(write_corpus(tmp_path / "corpus", judgments), tmp_path / "none.parquet", 10 * DOCS, to=tmp_path / "out", trains=True)
    assert sample.documents == Part(DOCS, DOCS) and sample.queries == {"dev": Part(DEV, DEV), "train": Part(TRAIN, TRAIN)}
    assert len(read_split(tmp_path / "out", "dev")[1]) == len(judgments["dev"])


def test_without_dev_some_train_queries_are_held_out(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"train": judgments["train"], "test": judgments["test"]})
    sample = draw(corpus, tmp_path / "none.parquet", 1000, to=tmp_path / "out", trains=True)
    assert sample.held_out and (sample.queries["dev"].drawn, sample.queries["train"].drawn) == (50, 500)
    dev, train = (set(read_split(tmp_path / "out", split)[0]) for split in ("dev", "train"))
    assert not dev & train and len(dev | train) == 550
    small_corpus = write_corpus(tmp_path / "few", {"train": judgments["train"][:9]})
    sample = draw(small_corpus, tmp_path / "none.parquet", 1000, to=tmp_path / "two", trains=True)
    assert (sample.queries["dev"].drawn, sample.queries["train"].drawn) == (1, 2), "at most half of them"


def test_test_queries_alone_are_not_looked_at(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"test": judgments["test"]})
    with pytest.raises(UserError, match=r"found neither dev nor two train queries .* queries: pseudo"):
        draw(corpus, tmp_path / "none.parquet", 1000, to=tmp_path / "out", trains=True)
    assert not (tmp_path / "out").exists()


def test_where_queries_are_made_documents_are_enough(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    sample = draw(write_corpus(tmp_path / "corpus", {}), tmp_path / "none.parquet", 300, to=tmp_path / "out", trains=False)
    assert sample.documents == Part(300, DOCS) and not any(part.drawn for part in sample.queries.values())
    assert len(list(read(tmp_path / "out", needs_qrels=False).documents())) == 300
    sample = draw(write_corpus(tmp_path / "both", judgments), tmp_path / "none.parquet", 300, to=tmp_path / "two", trains=False)
    assert (sample.queries["dev"].drawn, sample.queries["train"].drawn) == (15, 0), "the source's own dev selects"


def test_weights_of_pairs_stay(judgments: dict[str, list[Qrel]], tmp_path: Path) -> None:
    pairs = [(query, doc, 0.25) for query, doc, grade in judgments["train"] if grade]
    write_table(tmp_path / "weights.parquet", WEIGHTS, [table(WEIGHTS, pairs[:-200])])
    draw(write_corpus(tmp_path / "corpus", judgments), tmp_path / "weights.parquet", 10 * DOCS, to=tmp_path / "out", trains=True)
    weighted = {pair[:2] for pair in pairs[:-200]}
    rows = read_split(tmp_path / "out", "train")[1]
    assert len(rows) == len(judgments["train"])
    assert all(row["weight"] == (0.25 if (row["query"], row["doc"]) in weighted else 1.0) for row in rows)
