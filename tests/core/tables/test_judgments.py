"""Document lists by query against dictionaries; a table of negatives is read a group of rows at a time."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.tables import judgments
from tasks.core.tables.ids import IDS, Ints
from tasks.core.tables.judgments import (
    DocumentLists,
    SameTexts,
    grades_of,
    lists_of,
    ranked_groups,
    ranked_lists,
    relevant_pairs,
    with_same_texts,
)
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, RANKED

Row = tuple[str, str, int, float]


@pytest.fixture
def id_files(tmp_path: Path) -> tuple[Path, Path]:
    """Queries q9, q8, ... q0 and documents d0 ... d19, in that order."""
    paths = tmp_path / "queries.parquet", tmp_path / "documents.parquet"
    for path, names in zip(paths, ([f"q{n}" for n in range(9, -1, -1)], [f"d{n}" for n in range(20)]), strict=True):
        write_table(path, IDS, [pa.table([names], schema=IDS)])
    return paths


def negatives(seed: int) -> list[Row]:
    """Some queries with up to eight documents, in the order of `id_files`; one query and some documents are unknown."""
    rng = np.random.default_rng(seed)
    names = [name for name in [f"q{n}" for n in range(9, -1, -1)] if rng.random() < 0.7]
    names.insert(len(names) // 2, "gone")
    doc_lists = [rng.permutation([f"d{n}" for n in range(23)])[: rng.integers(1, 9)] for _ in names]
    return [
        (q, d, rank, float(rng.integers(9))) for q, docs in zip(names, doc_lists, strict=True) for rank, d in enumerate(docs.tolist(), 1)
    ]


def write(path: Path, rows: list[Row], batch: int = 3) -> None:
    tables = [pa.table([list(c) for c in zip(*rows[n : n + batch], strict=True)], schema=RANKED) for n in range(0, len(rows), batch)]
    write_table(path, RANKED, tables)


def as_dictionary(lists: DocumentLists) -> dict[int, list[tuple[int, float]]]:
    scores = np.full(len(lists.values), math.nan) if lists.scores is None else lists.scores
    cuts = zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True)
    return {q: list(zip(lists.values[s:e].tolist(), scores[s:e].tolist(), strict=True)) for q, (s, e) in enumerate(cuts) if e > s}


@pytest.mark.parametrize("group", [1, 5, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_negatives_are_read_in_groups_and_equal_a_dictionary(
    group: int, seed: int, id_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = negatives(seed)
    write(tmp_path / "train.parquet", rows)
    monkeypatch.setattr(judgments, "GROUP", group)
    monkeypatch.setattr("tasks.core.tables.parquet.BATCH_ROWS", 4)
    groups = list(ranked_groups(tmp_path / "train.parquet", (2, 6)))
    assert [tuple(row.values()) for table in groups for row in table.to_pylist()] == [row for row in rows if 2 <= row[2] <= 6]
    assert all(0 < len(table) < group + 4 for table in groups), "at most a group and a batch are in memory"
    expected: dict[int, list[tuple[int, float]]] = {}
    for query, doc, rank, score in rows:
        if 2 <= rank <= 6 and query != "gone" and int(doc[1:]) < 20:
            expected.setdefault(9 - int(query[1:]), []).append((int(doc[1:]), score))
    lists = ranked_lists(tmp_path / "train.parquet", *id_files, (2, 6), tmp_path)
    assert as_dictionary(lists) == expected
    assert all(lists.of(query).tolist() == [doc for doc, _ in expected.get(query, [])] for query in range(10))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["documents.parquet", "queries.parquet", "train.parquet"]


def test_a_mix_keeps_its_ratio_where_few_documents_are_allowed(id_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Only even documents are; a score of NaN is a random slot. The first list has one listed document in four, the second three."""
    nan = math.nan
    first = [("d0", nan), ("d1", nan), ("d2", 9.0), ("d3", nan), ("d4", nan), ("d6", nan), ("d5", 8.0), ("d8", nan), ("d9", nan)]
    second = [("d1", 7.0), ("d3", 6.0), ("d4", 5.0), ("d5", nan), ("d6", 4.0), ("d7", nan), ("d8", 3.0)]
    lists = {"q9": first, "q8": second}
    write(tmp_path / "mix.parquet", [(q, d, rank, s) for q, rows in lists.items() for rank, (d, s) in enumerate(rows, 1)])
    found = ranked_lists(tmp_path / "mix.parquet", *id_files, (1, 20), tmp_path, np.arange(20) % 2 == 0)
    assert found.of(0).tolist() == [0, 1, 2, 3, 4, 6], "slots before the listed document and after it, not those of document 5"
    assert found.of(1).tolist() == [4, 5, 6, 7, 8]
    assert np.isnan(found.scores_of(0)).tolist() == [True, True, False, True, True, True]


def test_empty_tables_are_read_and_unordered_ones_refused(
    id_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "empty.parquet", [])
    assert ranked_lists(tmp_path / "empty.parquet", *id_files, (1, 9), tmp_path).counts.tolist() == [0] * 10
    write(tmp_path / "order.parquet", [("q3", "d1", 1, 0.0), ("q2", "d1", 1, 0.0), ("q3", "d2", 2, 0.0)], 1)
    for group in (1, 2, 3):  # within a group, and from one to the next
        monkeypatch.setattr(judgments, "GROUP", group)
        with pytest.raises(UserError, match=r"order\.parquet: its queries are not in the order of the training queries"):
            ranked_lists(tmp_path / "order.parquet", *id_files, (1, 9), tmp_path)


def test_relevant_pairs_have_grades_above_0(id_files: tuple[Path, Path], tmp_path: Path) -> None:
    rows = [("q1", "d3", 1), ("q9", "d4", 2), ("q9", "d5", 0), ("q9", "d6", -1), ("gone", "d1", 1), ("q1", "gone", 1), ("q9", "d2", 1)]
    write_table(tmp_path / "qrels.parquet", QRELS, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=QRELS)])
    queries, documents = relevant_pairs(tmp_path / "qrels.parquet", *id_files)
    assert list(zip(queries.tolist(), documents.tolist(), strict=True)) == [(8, 3), (0, 4), (0, 2)]
    assert as_dictionary(lists_of(queries, documents, 10, np.array([1, 2, 3], np.float32))) == {0: [(4, 2.0), (2, 3.0)], 8: [(3, 1.0)]}


def same_texts_of(texts: Sequence[int], rows: Ints) -> SameTexts:
    """All of `texts` that are equal to one of the `rows`."""
    members = [n for n, text in enumerate(texts) if text in {texts[row] for row in rows.tolist()}]
    return SameTexts(np.array(members), np.array([texts.index(texts[n]) for n in members]))


@pytest.mark.parametrize("seed", range(5))
def test_pairs_of_the_same_texts_by_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = {"query": rng.integers(0, 6, size=12).tolist(), "document": rng.integers(0, 9, size=20).tolist()}
    pairs = {(int(q), int(d)) for q, d in zip(rng.integers(12, size=9), rng.integers(20, size=9), strict=True)}
    q, d = np.array(sorted(pairs)).T
    same_texts = [same_texts_of(texts["query"], q), same_texts_of(texts["document"], d)]
    judged_texts = {(texts["query"][query], texts["document"][document]) for query, document in pairs}
    expected = [
        (query, document)
        for query in range(12)
        for document in range(20)
        if (texts["query"][query], texts["document"][document]) in judged_texts
    ]
    assert list(zip(*map(np.ndarray.tolist, with_same_texts(q, d, *same_texts)), strict=True)) == expected
    grades, highest = rng.integers(1, 4, size=len(q)), dict[tuple[int, int], int]()
    for query, document, grade in zip(q.tolist(), d.tolist(), grades.tolist(), strict=True):
        key = texts["query"][query], texts["document"][document]
        highest[key] = max(grade, highest.get(key, 0))
    known_pairs = with_same_texts(q, d, *same_texts)
    actual = grades_of(known_pairs, (q, d), grades, *same_texts)
    assert actual.tolist() == [highest[texts["query"][query], texts["document"][document]] for query, document in expected]
    alone = with_same_texts(q, d, same_texts_of(range(12), q), same_texts_of(range(20), d))
    assert alone[0] is q and alone[1] is d, "bit for bit as before, where no text repeats"


@pytest.mark.parametrize(
    ("query_texts", "document_texts", "expected"),
    [([0, 0], [0, 1, 2], [(0, 1), (1, 1)]), ([0, 1], [0, 1, 1], [(0, 1), (0, 2)])],
)
def test_texts_that_repeat_on_one_side_alone(query_texts: list[int], document_texts: list[int], expected: list[tuple[int, int]]) -> None:
    q, d = np.array([0]), np.array([1])
    actual = with_same_texts(q, d, same_texts_of(query_texts, q), same_texts_of(document_texts, d))
    assert list(zip(*map(np.ndarray.tolist, actual), strict=True)) == expected
