"""Exact search by products in half precision: the results of float32, in cases made to break it. A CPU runs what a GPU would."""

from collections.abc import Callable, Iterable
from functools import cache
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.retrieval.cpu import exact as cpu
from tasks.core.retrieval.cpu.exact import Rounded
from tasks.core.retrieval.gpu import exact, reading
from tasks.core.retrieval.gpu.exact import Counted, Halved, bound, highest, highest_products, inner_products, products, search
from tests.core.retrieval.corpora import KINDS, corpus
from tests.fake_gpu import GPU, fake_gpu

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def search_on_cpu(queries: np.ndarray, blocks: Iterable[tuple[int, np.ndarray]], keep: int, _: torch.device) -> object:
    """The search of CPUs."""
    rounded = [(first, Rounded.of(torch.from_numpy(block), torch.float32, together=True)) for first, block in blocks]
    return cpu.search(torch.from_numpy(queries), rounded, keep, torch.float32)


def reference_score(query: np.ndarray, vector: np.ndarray) -> np.float32:
    """The inner product in float32, halves added to each other, one number at a time."""
    numbers = [np.float32(x) * np.float32(y) for x, y in zip(query, vector, strict=True)]
    while len(numbers) > 1:
        half, odd = len(numbers) // 2, numbers[2 * (len(numbers) // 2) :]
        numbers = [numbers[i] + numbers[half + i] for i in range(half)] + odd
    return numbers[0]


def reference_results(queries: np.ndarray, vectors: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pair scored in float32, by score, ties by row."""
    scores = np.full((len(queries), keep), -np.inf, dtype=np.float32)
    rows = np.full((len(queries), keep), -1)
    for q, query in enumerate(queries):
        all_scores = [reference_score(query, vector) for vector in vectors]
        best = sorted(range(len(vectors)), key=lambda row: (-all_scores[row], row))[:keep]
        rows[q, : len(best)], scores[q, : len(best)] = best, [all_scores[row] for row in best]
    return scores, rows


def reference_scores(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """`reference_score` of every pair, [Q, R]."""
    numbers = list((queries.astype(np.float32)[:, None] * vectors.astype(np.float32)).transpose(2, 0, 1))
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [numbers[i] + numbers[half + i] for i in range(half)] + numbers[2 * half :]
    return numbers[0]


def similar_vectors(rng: np.random.Generator, rows: int, width: int, cosine: float) -> np.ndarray:
    """Unit vectors with a mean cosine: those of most encoders have .5 to .9."""
    vectors = np.sqrt(1 - cosine) * rng.normal(size=(rows, width)) / np.sqrt(width) + np.sqrt(cosine) * np.eye(1, width)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width", "keep", "at_once"), [(150, 24, 5, 40), (90, 7, 30, 1000), (12, 16, 20, 5)])
def test_the_results_are_those_of_float32(
    kind: str, rows: int, width: int, keep: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "SPARE", 3)
    monkeypatch.setattr(exact, "QUERIES", 4)
    monkeypatch.setattr(exact, "PAIRS", 50)
    rng = np.random.default_rng(KINDS.index(kind))
    vectors = corpus(kind, rng, rows, width)
    queries = rng.normal(size=(6, width)).astype(np.float32)
    queries[0] = 0
    blocks = [(first, vectors[first : first + 17]) for first in range(0, rows, 17)]
    counted, sizes = Counted(), list[int]()
    results = search(queries, blocks, keep, CPU, sizes.append, rows=at_once, counted=counted)
    expected = reference_results(queries, vectors, keep)
    assert (results[0] == expected[0]).all() and (results[1] == expected[1]).all()
    assert sizes == [len(block) for _, block in blocks]
    assert counted.queries == 6
    if kind == "near ties" and rows > keep + 3 < at_once:
        assert counted.again, "half precision cannot tell these apart"
    if kind == "random" and (rows, at_once) == (150, 40):
        assert counted.again == 1, "the query of zeros alone, which all rows suit alike"


def test_the_bound_holds() -> None:
    """Against products in float64, and it is not much larger than needed."""
    rng = np.random.default_rng(0)
    queries, vectors = (torch.from_numpy(rng.normal(size=(n, 384)).astype(np.float32)) for n in (20, 3000))
    vectors[:, :300] *= 1e-6  # of which float16 keeps little
    halved, halved_vectors = Halved.of(queries, together=False), Halved.of(vectors, together=True)
    product = torch.ldexp(products(halved.values_XD, halved_vectors.values_XD), halved.exponent + halved_vectors.exponent)
    limit = torch.ldexp(bound(halved, halved_vectors, 384), halved.exponent[:, 0] + halved_vectors.exponent)
    score = torch.stack([inner_products(query, vectors) for query in queries])
    exact_scores = queries.double() @ vectors.double().T
    assert ((score.double() - exact_scores).abs().amax(1) <= limit).all()
    error = (product - score).abs().amax(1)
    assert (error <= limit).all() and (error >= limit / 20).all()


@pytest.mark.parametrize(("rows", "keep"), [(7, 9), (64, 3), (1000, 1), (1000, 10), (5003, 20), (4096, 400)])
def test_the_highest_of_blocks_are_the_highest(rows: int, keep: int) -> None:
    values = torch.randn(6, rows, generator=torch.Generator().manual_seed(rows))
    values[0] = 1  # ties
    values[1] = values[1].sort().values  # neighbors
    values[2, ::7] += 100
    values[3, -3:] = 50  # behind the last block
    values[4, : rows // 2] = -torch.inf
    best, columns = highest(values, keep)
    expected = values.sort(dim=1, descending=True).values[:, :keep]
    assert torch.equal(best, expected) and torch.equal(values.gather(1, columns), expected)
    assert all(len(set(row)) == len(row) for row in columns.tolist()), "each place once"


def test_products_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    left, right = (torch.from_numpy(rng.normal(size=(n, 16))).half() for n in (3, 700))
    expected = highest_products(left, right, 9)
    for rows in (64, 5):  # fewer than are kept
        monkeypatch.setattr(exact, "PRODUCTS", 3 * rows)
        parts = highest_products(left, right, 9)
        assert torch.equal(expected[0], parts[0]) and torch.equal(expected[1], parts[1])


def test_rows_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how many numbers they have: wide vectors in smaller parts."""
    rng = np.random.default_rng(6)
    queries, vectors = (torch.from_numpy(rng.normal(size=(n, 16)).astype(np.float32)) for n in (7, 40))
    rows = torch.from_numpy(rng.integers(0, 40, size=(7, 5)))
    expected = exact._scores(queries, vectors, rows)
    sizes: list[int] = []

    def record_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        sizes.append(right.numel())
        return inner_products(left, right)

    monkeypatch.setattr(exact, "inner_products", record_products)
    monkeypatch.setattr(exact, "NUMBERS", 2 * 5 * 16)
    assert torch.equal(exact._scores(queries, vectors, rows), expected)
    assert sizes == [160, 160, 160, 80]


def test_groups_and_products_fit_a_gpu() -> None:
    with fake_gpu():  # of 16 GiB, 8 of which are free
        assert exact.products_at_once(GPU) == 2**28
        assert exact.rows_at_once(768, GPU) == (2**32 - 2**31) // (16 * 768)
        with mock.patch.multiple(
            torch.cuda, mem_get_info=lambda *_: (4 << 30, 4 << 30), get_device_properties=lambda *_: SimpleNamespace(total_memory=4 << 30)
        ):
            assert exact.rows_at_once(768, GPU) > 100_000


def test_blocks_that_one_pass_uses_up_are_refused() -> None:
    vectors = np.ones((4, 3), dtype=np.float32)
    with pytest.raises(AssertionError, match="blocks that may be passed over twice"):
        search(vectors, iter([(0, vectors)]), 2, CPU)


def test_memory_that_torch_keeps_of_a_former_search_is_free() -> None:
    used = 6 << 30
    with fake_gpu():
        at_first = exact.rows_at_once(768, GPU)
        with mock.patch.multiple(
            torch.cuda, mem_get_info=lambda *_: ((8 << 30) - used, 16 << 30), memory_reserved=lambda *_: used, memory_allocated=lambda *_: 0
        ):
            assert exact.rows_at_once(768, GPU) == at_first > exact.LEAST
            with mock.patch.object(torch.cuda, "memory_allocated", lambda *_: used):
                assert exact.rows_at_once(768, GPU) == exact.LEAST


def test_few_queries_of_a_usual_corpus_need_a_second_pass() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(n, 64)).astype(np.float32) for n in (20000, 50))
    vectors, queries = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in (vectors, queries))
    counted = Counted()
    scores, rows = search(queries, [(0, vectors)], 100, CPU, counted=counted)
    assert counted.again == 0
    exact_scores = np.sort(queries.astype(np.float64) @ vectors.T.astype(np.float64), axis=1)[:, ::-1][:, :100]
    assert np.abs(scores - exact_scores).max() < 1e-6 and (np.diff(rows, axis=1) != 0).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(number: float) -> None:
    vectors = np.ones((9, 3), dtype=np.float32)
    vectors[7, 1] = number
    with pytest.raises(UserError, match="rows 5 to 8: found NaN or infinity"):
        search(np.ones((1, 3), dtype=np.float32), [(0, vectors[:5]), (5, vectors[5:])], 2, CPU, rows=5)


@pytest.mark.parametrize("search_by", [exact.search, search_on_cpu])
def test_products_beyond_float32_are_refused(search_by: Callable[..., object]) -> None:
    """They are infinite, or infinity minus infinity."""
    rng = np.random.default_rng(0)
    queries, vectors = (rng.normal(size=(n, 16)).astype(np.float32) for n in (3, 50))
    for norm in (1e19, 1e20, 1e30):
        with pytest.raises(UserError, match="found inner products too large for float32, expected vectors of norms below 1e19; "):
            search_by(queries * np.float32(norm), [(0, vectors * np.float32(norm))], 60, CPU)
    search_by(queries * np.float32(1e30), [(0, vectors)], 60, CPU)


def test_nothing_and_no_query() -> None:
    scores, rows = search(np.ones((2, 3), dtype=np.float32), [], 2, CPU)
    assert (scores == -np.inf).all() and (rows == -1).all()
    assert search(np.empty((0, 3), dtype=np.float32), [(0, np.ones((4, 3), dtype=np.float32))], 2, CPU)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("cosine", "depth", "again"), [(0.8, 210, 0), (0.8, 1000, 0), (0.95, 1000, 0), (0.9999, 210, 20), (0.9999, 1000, 20)]
)
@pytest.mark.parametrize("halves", [False, True])
def test_vectors_that_are_alike(cosine: float, depth: int, again: int, halves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The K-th best is known to half precision, so the more alike, the more rows may be among the best."""
    monkeypatch.setattr(exact, "PRODUCTS", 8 * 20 * 700)
    rng, width = np.random.default_rng(depth), 32
    vectors, queries = (
        similar_vectors(rng, 6000, width, cosine).astype(np.float16 if halves else np.float32),
        similar_vectors(rng, 20, width, cosine),
    )
    vectors[5000:5100] = vectors[:100]  # ties
    counted = Counted()
    scores, rows = search(queries, [(0, vectors[:900]), (900, vectors[900:])], depth, CPU, counted=counted)
    every_QR = reference_scores(queries, vectors)
    order_QK = np.argsort(-every_QR, axis=1, kind="stable")[:, :depth]
    assert (rows == order_QK).all() and (scores == np.take_along_axis(every_QR, order_QK, 1)).all()
    assert counted.again == again


def test_many_queries_score_fewer_rows_each_than_few() -> None:
    assert exact.spare_rows(20, 10) == exact.spare_rows(20, 10**6) == 64
    assert exact.spare_rows(1016, 32) == 1016 and exact.spare_rows(1016, 10**6) == 508


@pytest.mark.parametrize("queries", [3, 40])
def test_unproven_queries_are_searched_together(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the second pass waits once for each part of a group's products, not for each query."""
    monkeypatch.setattr(exact, "QUERIES", 50)
    rng, counted = np.random.default_rng(queries), Counted()
    vectors, query_vectors = similar_vectors(rng, 3000, 16, 0.99999), similar_vectors(rng, queries, 16, 0.99999)
    vectors[::7] = vectors[0]
    vectors[2000:] *= np.float32(0.9)  # no row of the last group is near
    blocks = [(first, vectors[first : first + 1000]) for first in range(0, 3000, 1000)]
    expected = search(query_vectors, blocks, 9, CPU, rows=3000)
    with fake_gpu() as gpu:
        results = search(query_vectors, blocks, 9, GPU, rows=1000, counted=counted)
        waits = [wait.split()[0] for wait in gpu.waited]
    assert (results[0] == expected[0]).all() and (results[1] == expected[1]).all()
    assert counted.again == queries and (expected[0] == np.sort(reference_scores(query_vectors, vectors), axis=1)[:, ::-1][:, :9]).all()
    assert sorted(waits) == ["event", "event", "sent", "size", "size", "size"], gpu.waited


@pytest.mark.parametrize("pairs", [0, 1, 60])
def test_further_pairs_are_taken_in(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    held_pairs = {query: [(float(rng.integers(4)), row) for row in range(query)] for query in range(5)}  # fewer than are kept
    best = [
        sorted(query_pairs, key=lambda pair: (-pair[0], pair[1])) + [(-np.inf, -1)] * (4 - len(query_pairs))
        for query_pairs in held_pairs.values()
    ]
    new_pairs = [(int(rng.integers(5)), float(rng.integers(4)), 10 + row) for row in rng.permutation(pairs)]
    scores, rows = (torch.tensor([[pair[side] for pair in query_pairs] for query_pairs in best]) for side in (0, 1))
    query, score, row = (
        torch.tensor([pair[side] for pair in new_pairs], dtype=kind) for side, kind in enumerate((torch.int64, torch.float32, torch.int64))
    )
    merged = exact.merge_pairs(scores, rows, query, score, row)
    for number, query_pairs in enumerate(best):
        expected = sorted(
            [*query_pairs, *((score, row) for query, score, row in new_pairs if query == number)], key=lambda pair: (-pair[0], pair[1])
        )[:4]
        assert list(zip(merged[0][number].tolist(), merged[1][number].tolist(), strict=True)) == expected


def test_searches_share_one_stream_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives the memory that one stream has freed to no other."""
    copy_stream = cache(reading.copy_stream.__wrapped__)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: object())
    monkeypatch.setattr(reading, "copy_stream", copy_stream)
    assert copy_stream(GPU) is copy_stream(torch.device("cuda:0")) is not copy_stream(torch.device("cuda:1"))


def test_groups_of_nearly_one_size_take_the_same_memory() -> None:
    sizes = [9, 6, 8, 7, 7, 7, 2]
    blocks = [(sum(sizes[:n]), np.full((size, 4), n, dtype=np.float16)) for n, size in enumerate(sizes)]
    with fake_gpu():
        groups = [(first, group.held) for first, group, _ in reading.group_blocks(blocks, 16, GPU)]
    assert [(first, group[:, 0].tolist()) for first, group in groups] == [
        (0, [0.0] * 9 + [1.0] * 6),
        (15, [2.0] * 8 + [3.0] * 7),
        (30, [4.0] * 7 + [5.0] * 7 + [6.0] * 2),
    ]
    assert {group.untyped_storage().nbytes() for _, group in groups} == {16 * 4 * 2}
