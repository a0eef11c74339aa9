"""A mixture keeps its ratio at every rank, holds a document once and no positive, and is the same each time."""

import math
import random
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.mix.interleave import Table, interleave, mix_negatives, random_source

QUERIES = [f"q{n}" for n in (3, 1, 2, 0)]
DOCUMENTS = [f"d{n}" for n in range(30)]
Row = tuple[str, str, int, float]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1 / 3, 0.5, 0.75, 0.9])
def test_every_range_of_ranks_has_the_ratio(ratio: float) -> None:
    mixed = [doc for doc, _ in interleave([(f"a{n}", 1.0) for n in range(300)], [(f"b{n}", 2.0) for n in range(300)], ratio, 200)]
    assert len(mixed) == 200
    for n in range(1, 201):
        assert abs(sum(doc.startswith("a") for doc in mixed[:n]) - ratio * n) <= 0.5 + 1e-9
    for source in "ab":
        numbers = [int(doc[1:]) for doc in mixed if doc[0] == source]
        assert numbers == list(range(len(numbers))), "the best of each, in their order"


def test_shared_documents_appear_once_and_the_shorter_list_ends_the_mixture() -> None:
    first, second = [("x", 5.0), ("y", 4.0), ("z", 3.0)], [("y", 9.0), ("x", 8.0), ("w", 7.0)]
    assert interleave(first, second, 0.5, 10) == [("x", 5.0), ("y", 9.0), ("z", 3.0), ("w", 7.0)]
    assert interleave(first, second, 0.5, 3) == [("x", 5.0), ("y", 9.0), ("z", 3.0)]
    assert interleave([], second, 0.5, 10) == []
    assert interleave(first, [], 0.5, 10) == first[:1]


def write_negatives(folder: Path, name: str, rows: list[Row]) -> Path:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    write_table(folder / name / "train.parquet", RANKED, [pa.table(columns, schema=RANKED)])
    return folder / name


def reference_mixture(first: list[tuple[str, float]], second: list[tuple[str, float]], ratio: float, depth: int) -> list[tuple[str, float]]:
    """The next from `first` if that is closer to `ratio` than the next from `second`; the first one left that is not yet taken."""
    mixed, own = list[tuple[str, float]](), 0
    while len(mixed) < depth:
        target = ratio * (len(mixed) + 1)
        nearer = abs(own + 1 - target) <= abs(own - target)
        left = [entry for entry in (first if nearer else second) if entry[0] not in dict(mixed)]
        if not left:
            break
        mixed, own = [*mixed, left[0]], own + nearer
    return mixed


@pytest.mark.parametrize("batch", [1, 5, 1000])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_tables_are_mixed_query_by_query(ratio: float, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table has no rows of some queries; a batch ends with the query that fills it."""
    monkeypatch.setattr("tasks.mix.interleave.BATCH_ROWS", batch)
    draw = random.Random(batch)
    queries = draw.sample([f"q{n}" for n in range(99)], 40)
    lists = [{q: [(d, draw.randint(0, 9) / 4) for d in draw.sample(DOCUMENTS, draw.choice([0, 1, 5, 9]))] for q in queries} for _ in "ab"]
    rows = [[(q, d, rank, score) for q in queries for rank, (d, score) in enumerate(own[q], 1)] for own in lists]
    first, second = (Table(write_negatives(tmp_path, name, own) / "train.parquet") for name, own in zip("ab", rows, strict=True))
    parts = list(mix_negatives(queries, first, second, ratio, 8))
    first.close()
    second.close()
    expected, sizes, rows_in_parts = list[Row](), list[int](), 0
    for query in queries:
        mixed = reference_mixture(lists[0][query], lists[1][query], ratio, 8)
        expected += [(query, doc, rank, score) for rank, (doc, score) in enumerate(mixed, 1)]
        if len(expected) - rows_in_parts >= batch:
            sizes, rows_in_parts = [*sizes, len(expected) - rows_in_parts], len(expected)
    assert [tuple(row.values()) for part in parts for row in part.to_pylist()] == expected
    assert [len(part) for part in parts] == [*sizes, len(expected) - rows_in_parts]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, params: str, first: Path, second: Path) -> list[Row]:
    (folder / "params.yaml").write_text(f"mix: {{m: {params}}}\n")
    for name, ids in (("documents", DOCUMENTS), ("queries", QUERIES)):
        write_table(folder / name / "ids.parquet", IDS, [pa.table([ids], schema=IDS)])
    write_table(folder / "qrels.parquet", QRELS, [pa.table([["q1"] * 20 + ["q2"], [*DOCUMENTS[:20], "d5"], [1] * 20 + [0]], schema=QRELS)])
    monkeypatch.chdir(folder)
    paths = f"--first {first} --second {second} --documents documents --queries queries --qrels qrels.parquet --out out"
    monkeypatch.setattr(sys, "argv", ["mix", "--name", "m", *paths.split()])
    import_module("tasks.mix.__main__").main()
    return [tuple(row.values()) for row in read_table(folder / "out" / "train.parquet", RANKED).to_pylist()]


def test_bm25_and_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    rows = [(q, d, rank, 1 / rank) for q in QUERIES if q != "q2" for rank, d in enumerate(draw.sample(DOCUMENTS[20:], 8), 1)]
    bm25, empty = write_negatives(tmp_path, "bm25", rows), write_negatives(tmp_path, "random", [])
    params = "{first: bm25, second: random, ratio: 0.5, depth: 8, seed: %d}"
    mixed_rows = run(tmp_path, monkeypatch, params % 1, bm25, empty)
    digest = folder_digest(tmp_path / "out")
    for query in QUERIES:
        mixed = [row for row in mixed_rows if row[0] == query]
        if query == "q2":  # BM25 found nothing
            assert mixed == []
            continue
        assert [rank for _, _, rank, _ in mixed] == list(range(1, 9))
        assert len({d for _, d, _, _ in mixed}) == 8
        own = [(d, s) for q, d, _, s in rows if q == query]
        for _, doc, rank, score in mixed:
            if query == "q1":
                assert doc not in DOCUMENTS[:20], "a positive"
            if rank % 2:
                assert (doc, pytest.approx(score)) in own
            else:
                assert math.isnan(score), "a round draws another in its place"
    assert [row[0] for row in mixed_rows] == [q for q in QUERIES if q != "q2" for _ in range(8)]
    repeated = run(tmp_path, monkeypatch, params % 1, bm25, empty)
    assert folder_digest(tmp_path / "out") == digest
    assert [doc for _, doc, _, _ in repeated] != [doc for _, doc, _, _ in run(tmp_path, monkeypatch, params % 2, bm25, empty)]
    swapped = run(tmp_path, monkeypatch, "{first: random, second: bm25, ratio: 0.25, depth: 8}", empty, bm25)
    assert len(swapped) > 20


def test_random_uses_all_other_documents_of_a_small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("q1", f"e{n}", n + 1, 0.0) for n in range(20)]
    mixed_rows = run(
        tmp_path,
        monkeypatch,
        "{first: a, second: random, depth: 100}",
        write_negatives(tmp_path, "a", rows),
        write_negatives(tmp_path, "r", []),
    )
    assert sorted(d for _, d, _, _ in mixed_rows if d[0] == "d") == sorted(DOCUMENTS[20:])


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = write_negatives(tmp_path, "a", [("q0", "d1", 1, 1.0), ("q3", "d1", 1, 1.0)])
    b = write_negatives(tmp_path, "b", [])
    with pytest.raises(UserError, match="found query 'q3' out of order"):
        run(tmp_path, monkeypatch, "{first: a, second: random}", a, b)
    with pytest.raises(UserError, match="have no negatives for any training query"):
        run(tmp_path, monkeypatch, "{first: b, second: c}", b, b)
    with pytest.raises(UserError, match="both a; name two"):
        run(tmp_path, monkeypatch, "{first: a, second: a}", a, a)
    with pytest.raises(UserError, match="none has no negatives"):
        run(tmp_path, monkeypatch, "{first: a, second: none}", a, a)
    assert not (tmp_path / "out").exists()


def test_a_query_to_which_all_documents_are_relevant_has_no_random_negatives() -> None:
    assert random_source(pa.array(["d0", "d1"]), {0: {0, 1}}, depth=3, seed=1)("q", 0) == []
