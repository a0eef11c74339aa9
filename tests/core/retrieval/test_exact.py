"""Exact search and ranked lists against a ranking by plain Python in float64, ties and passages included."""

import resource
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.retrieval import exact, ranked
from tasks.core.retrieval.cpu import exact as cpu
from tasks.core.retrieval.exact import Reread, exact_search
from tasks.core.retrieval.passages import best_passages
from tasks.core.retrieval.ranked import MARGIN, id_order, ranked_tables
from tasks.core.tables.schemas import RANKED
from tests.fake_gpu import GPU, fake_gpu

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
Lists = dict[str, list[tuple[str, int, float]]]  # query id: (document id, rank, score)


def blocks(vectors: np.ndarray, *cuts: int) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of `vectors`, cut before the rows `cuts`."""
    edges = [0, *cuts, len(vectors)]
    for first, end in pairwise(edges):
        yield first, vectors[first:end]


def brute_force(
    queries: np.ndarray,
    vectors: np.ndarray,
    owners: list[int],
    ids: list[str],
    depth: int,
    excluded: set[tuple[int, int]] = frozenset(),
) -> Lists:
    """What a dense retriever returns, by a loop over all pairs in float64."""
    lists: Lists = {}
    for q, query in enumerate(queries.astype(np.float64)):
        best: dict[int, float] = {}
        for row, vector in enumerate(vectors.astype(np.float64)):
            score = float(sum(x * y for x, y in zip(query, vector, strict=True)))
            best[owners[row]] = max(score, best.get(owners[row], -np.inf))
        remaining = [(score, ids[doc]) for doc, score in best.items() if (q, doc) not in excluded]
        ordered = sorted(sorted(remaining, key=lambda pair: pair[1].encode(), reverse=True), key=lambda pair: -pair[0])
        lists[f"q{q}"] = [(doc, rank, score) for rank, (score, doc) in enumerate(ordered[:depth], 1)]
    return lists


def as_lists(tables: Iterator[pa.Table], queries: int) -> Lists:
    lists: Lists = {f"q{q}": [] for q in range(queries)}
    for table in tables:
        assert table.schema.equals(RANKED)
        for row in table.to_pylist():
            lists[row["query"]].append((row["doc"], row["rank"], row["score"]))
    return lists


def assert_equal_lists(actual: Lists, expected: Lists) -> None:
    assert actual.keys() == expected.keys()
    for query, rows in expected.items():
        assert [row[:2] for row in actual[query]] == [row[:2] for row in rows], query
        assert [row[2] for row in actual[query]] == pytest.approx([row[2] for row in rows], rel=1e-5, abs=1e-5)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a few rows make many."""
    monkeypatch.setattr(exact, "ROWS", 16)
    monkeypatch.setattr(exact, "HEAD", 2)


def names(prefix: str, count: int) -> pa.Array:
    return pa.array([f"{prefix}{n}" for n in range(count)], pa.string())


@pytest.mark.parametrize(
    ("queries", "rows", "width", "k", "cuts"),
    [
        (7, 200, 16, 10, (50, 51, 130)),
        (1, 1, 3, 1, ()),  # one query, one document
        (3, 5, 8, 100, (2,)),  # fewer rows than k
        (5, 90, 4, 1, tuple(range(1, 90))),  # a block a row
        (2, 300, 24, 40, (10,)),  # a block smaller than k
        (0, 4, 5, 3, ()),  # no query
    ],
)
def test_equals_brute_force(queries: int, rows: int, width: int, k: int, cuts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(rows)
    query_vectors, vectors = rng.normal(size=(queries, width)).astype(np.float32), rng.normal(size=(rows, width)).astype(np.float32)
    counts: list[int] = []
    scores, indices = exact_search(query_vectors, blocks(vectors, *cuts), k, CPU, counts.append)
    assert scores.shape == indices.shape == (queries, k + MARGIN)
    assert scores.dtype == np.float32 and indices.dtype == np.int64
    remaining = max(0, rows - 32)
    assert counts == [min(32, rows)] + [16] * (remaining // 16) + [remaining % 16] * (remaining % 16 > 0)
    assert ((indices < 0) == np.isneginf(scores)).all()
    assert (np.diff(np.where(np.isneginf(scores), -1e9, scores)) <= 0).all()
    for row, columns in enumerate(indices):
        assert len(set(columns[columns >= 0])) == (columns >= 0).sum() == min(rows, k + MARGIN), row
    tables = ranked_tables(scores, indices, names("q", queries), names("d", rows), np.arange(rows, dtype=np.int32), k)
    assert_equal_lists(as_lists(tables, queries), brute_force(query_vectors, vectors, list(range(rows)), names("d", rows).to_pylist(), k))


def test_a_gpu_is_asked_and_finds_what_brute_force_finds() -> None:
    """It may pass over the blocks twice."""
    rng = np.random.default_rng(4)
    query_vectors, vectors = rng.normal(size=(5, 8)).astype(np.float32), rng.normal(size=(90, 8)).astype(np.float32)
    with fake_gpu() as gpu:
        scores, rows = exact_search(query_vectors, Reread(lambda: blocks(vectors, 30, 31)), 7, GPU)
        assert gpu.waited, "nothing was read from it"
    tables = ranked_tables(scores, rows, names("q", 5), names("d", 90), np.arange(90, dtype=np.int32), 7)
    assert_equal_lists(as_lists(tables, 5), brute_force(query_vectors, vectors, list(range(90)), names("d", 90).to_pylist(), 7))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_stored_types_and_memory_maps_are_searched_as_float32(dtype: str, tmp_path: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(60, 8)).astype(dtype)
    np.save(f"{tmp_path}/v.npy", vectors)
    query_vectors = rng.normal(size=(2, 8)).astype(np.float32)
    scores, rows = exact_search(query_vectors, blocks(np.load(f"{tmp_path}/v.npy", mmap_mode="r"), 13), 5, CPU)
    tables = ranked_tables(scores, rows, names("q", 2), names("d", 60), np.arange(60, dtype=np.int32), 5)
    assert_equal_lists(as_lists(tables, 2), brute_force(query_vectors, vectors, list(range(60)), names("d", 60).to_pylist(), 5))


def test_exact_ties_are_ordered_by_descending_document_id() -> None:
    ids = ["b", "10", "9", "a", "é", "Z", "aa", "c"]  # trec_eval's order, bytes falling: é c b aa a Z 9 10
    vectors = np.ones((8, 2), dtype=np.float32)
    vectors[7] = 2  # c is best
    for k, expected in ((1, ["c"]), (2, ["c", "é"]), (4, ["c", "é", "b", "aa"]), (8, ["c", "é", "b", "aa", "a", "Z", "9", "10"])):
        scores, rows = exact_search(np.ones((1, 2), dtype=np.float32), blocks(vectors, 3), k, CPU)
        table = next(ranked_tables(scores, rows, names("q", 1), pa.array(ids), np.arange(8, dtype=np.int32), k))
        assert table["doc"].to_pylist() == expected
        assert table["rank"].to_pylist() == list(range(1, k + 1))


def test_ties_across_blocks_at_the_boundary_equal_brute_force() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.integers(-1, 2, size=(MARGIN + 4, 3)).astype(np.float32)  # small integers: scores tie, and exactly
    query_vectors = rng.integers(-1, 2, size=(9, 3)).astype(np.float32)
    ids = names("d", len(vectors))
    for k in range(1, 8):
        scores, rows = exact_search(query_vectors, blocks(vectors, 4, 9), k, CPU)
        tables = ranked_tables(scores, rows, names("q", 9), ids, np.arange(len(vectors), dtype=np.int32), k)
        expected = brute_force(query_vectors, vectors, list(range(len(vectors))), ids.to_pylist(), k)
        tied = {q: sum(score == rows[-1][2] for *_, score in rows) for q, rows in expected.items()}
        assert_equal_lists(as_lists(tables, 9), expected)
        assert max(tied.values()) >= 1


@pytest.mark.parametrize("depth", [1, 3, 12, 50])
def test_document_appears_once_by_its_best_passage(depth: int) -> None:
    rng = np.random.default_rng(depth)
    owners = np.repeat(np.arange(30, dtype=np.int32), rng.integers(1, 5, size=30))
    vectors = rng.normal(size=(len(owners), 6)).astype(np.float32)
    vectors[owners == 4] = vectors[owners == 4][:1] * 5  # passages that all score alike, and high
    query_vectors = rng.normal(size=(8, 6)).astype(np.float32)
    ids = names("d", 30)
    scores, rows = best_passages(lambda queries, k: exact_search(queries, blocks(vectors, 11, 40), k, CPU), query_vectors, owners, depth)
    lists = as_lists(ranked_tables(scores, rows, names("q", 8), ids, owners, depth), 8)
    assert_equal_lists(lists, brute_force(query_vectors, vectors, owners.tolist(), ids.to_pylist(), depth))
    assert all(len(rows) == min(depth, 30) for rows in lists.values())


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_excluded_documents_leave_no_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    query_vectors, vectors = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(40, 5)).astype(np.float32)
    order = np.argsort(-(query_vectors @ vectors.T), axis=1)
    pairs = {(q, int(doc)) for q in range(6) for doc in order[q, : 2 * q]} | {(0, int(order[0, 3]))}  # q5: the ten best are positives
    excluded = np.array([q * 40 + doc for q, doc in pairs], dtype=np.int64)
    scores, rows = exact_search(query_vectors, blocks(vectors, 20), 40, CPU)
    ids = names("d", 40)
    lists = as_lists(ranked_tables(scores, rows, names("q", 6), ids, np.arange(40, dtype=np.int32), 7, excluded), 6)
    assert_equal_lists(lists, brute_force(query_vectors, vectors, list(range(40)), ids.to_pylist(), 7, pairs))
    assert not {(int(q[1:]), int(doc[1:])) for q, rows in lists.items() for doc, *_ in rows} & pairs
    assert all([rank for _, rank, _ in rows] == list(range(1, 8)) for rows in lists.values())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.ones((10, 3), dtype=np.float32)
    vectors[7, 1] = value
    monkeypatch.setattr(exact, "ROWS", 5)
    monkeypatch.setattr(exact, "HEAD", 1)
    with pytest.raises(UserError, match=r"rows 5 to 9.*NaN or infinity"):
        exact_search(np.ones((1, 3), dtype=np.float32), blocks(vectors, 3, 6), 2, CPU)


def test_more_queries_than_a_block_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    query_vectors, vectors = rng.normal(size=(11, 4)).astype(np.float32), rng.normal(size=(25, 4)).astype(np.float32)
    ids, owners = names("d", 25), np.arange(25, dtype=np.int32)
    excluded_pairs = {(q, q) for q in range(11)}
    excluded = np.array([q * 25 + doc for q, doc in excluded_pairs])
    monkeypatch.setattr(cpu, "QUERIES", 4)
    monkeypatch.setattr(cpu, "FEWEST", 1)
    monkeypatch.setattr(ranked, "QUERY_BLOCK", 4)
    scores, rows = exact_search(query_vectors, blocks(vectors, 9), 6, CPU)
    tables = list(ranked_tables(scores, rows, names("q", 11), ids, owners, 5, excluded))
    assert [table["query"].combine_chunks().unique().to_pylist() for table in tables] == [
        [f"q{q}" for q in part] for part in (range(4), range(4, 8), range(8, 11))
    ]
    assert_equal_lists(as_lists(iter(tables), 11), brute_force(query_vectors, vectors, list(range(25)), ids.to_pylist(), 5, excluded_pairs))


def test_id_order_is_that_of_bytes() -> None:
    ids = ["10", "9", "é", "Z", "a", "", "a ", "𝄞"]
    assert id_order(pa.array(ids)).tolist() == [sorted(ids, key=str.encode).index(i) for i in ids]


@pytest.mark.parametrize("head", [1, 3])
@pytest.mark.parametrize("rows", [1, 5, 7, 100])
def test_what_is_searched_at_once_does_not_depend_on_the_shards(rows: int, head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every shape of a product oneDNN compiles a kernel and keeps it: 75 MiB for the 235 shards of a million rows."""
    monkeypatch.setattr(exact, "ROWS", rows)
    monkeypatch.setattr(exact, "HEAD", head)
    spans: list[tuple[int, int]] = []
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(37, 4)).astype(np.float32)

    search = cpu.Part.search

    def record_span(part: cpu.Part, first: int, block: cpu.Rounded) -> None:
        assert block.exact_XD.numpy().tolist() == vectors[first : first + (rows if first else head * rows)].tolist()
        spans.append((first, len(block.exact_XD)))
        search(part, first, block)

    monkeypatch.setattr(cpu.Part, "search", record_span)
    exact_search(vectors[:2], blocks(vectors, 1, 2, 9, 30), 3, CPU)
    assert spans == [(0, min(head * rows, 37))] + [(first, min(rows, 37 - first)) for first in range(head * rows, 37, rows)]


def test_blocks_with_a_gap_are_a_fault() -> None:
    vectors = np.ones((4, 2), dtype=np.float32)
    with pytest.raises(AssertionError, match="without gaps"):
        exact_search(vectors, [(0, vectors), (5, vectors)], 1, CPU)


def test_memory_does_not_grow_with_the_corpus() -> None:
    rng = np.random.default_rng(0)
    query_vectors = rng.normal(size=(8, 64)).astype(np.float32)

    def corpus(count: int) -> Iterator[tuple[int, np.ndarray]]:
        for number in range(count):
            yield number * 1024, rng.standard_normal(size=(1024, 64), dtype=np.float32)

    exact_search(query_vectors, corpus(5), 10, CPU)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores, rows = exact_search(query_vectors, corpus(200), 10, CPU)  # 52 MB of vectors, 7 MB of scores
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB
    assert rows.max() > 190 * 1024 and np.isfinite(scores).all()
