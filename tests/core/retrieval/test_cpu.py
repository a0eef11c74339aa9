"""Exact search by products in bfloat16: the results of float32, in cases made to break it, in any blocks and parts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tasks.core.retrieval.cpu import exact as cpu
from tasks.core.retrieval.cpu.exact import Best, Rounded, at_least, error_bound, kth_largest, ordered, scores
from tests.core.retrieval.corpora import KINDS, corpus

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def all_scores(queries: torch.Tensor, vectors: torch.Tensor) -> np.ndarray:
    """Scores [Q, R] of every pair."""
    query_N, row_N = (indices.ravel() for indices in np.indices((len(queries), len(vectors))))
    return scores(queries, vectors, row_N, query_N).reshape(len(queries), len(vectors))


def reference_results(queries: torch.Tensor, vectors: torch.Tensor, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pair scored, by score, ties by row."""
    results = np.full((len(queries), keep), -np.inf, dtype=np.float32), np.full((len(queries), keep), -1)
    for q, scored in enumerate(all_scores(queries, vectors)):
        best = sorted(range(len(vectors)), key=lambda row: (-scored[row], row))[:keep]
        results[0][q, : len(best)], results[1][q, : len(best)] = scored[best], best
    return results


def blocks(vectors: torch.Tensor, rows: int) -> list[tuple[int, torch.Tensor]]:
    return [(first, vectors[first : first + rows]) for first in range(0, len(vectors), rows)]


def search(
    queries: torch.Tensor,
    blocks: list[tuple[int, torch.Tensor]],
    keep: int,
    dtype: torch.dtype,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[np.ndarray, np.ndarray]:
    return cpu.search(queries, [(first, Rounded.of(rows, dtype, together=True)) for first, rows in blocks], keep, dtype, done)


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width", "keep", "block"), [(150, 24, 5, 40), (90, 7, 30, 1000), (12, 16, 20, 5), (160, 8, 2, 80)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_results_are_those_of_float32(
    dtype: torch.dtype, kind: str, rows: int, width: int, keep: int, block: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "QUERIES", 2)
    monkeypatch.setattr(cpu, "FEWEST", 1)
    monkeypatch.setattr(cpu, "PRODUCTS", 40)
    rng = np.random.default_rng(KINDS.index(kind))
    vectors = torch.from_numpy(corpus(kind, rng, rows, width).astype(np.float32))
    queries = torch.from_numpy(rng.normal(size=(7, width)).astype(np.float32))
    queries[0] = 0
    expected, counts = reference_results(queries, vectors, keep), list[int]()
    torch.set_num_threads(threads)
    results = search(queries, blocks(vectors, block), keep, dtype, counts.append)
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(results[0], expected[0])
    np.testing.assert_array_equal(results[1], expected[1])
    assert counts == [len(rows) for _, rows in blocks(vectors, block)]


@DTYPES
@pytest.mark.parametrize("order", ["rising", "falling", "clustered"])
def test_any_order_of_rows(dtype: torch.dtype, order: str) -> None:
    """Rising: each block enters as a whole, more rows than there is room for."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 16)).astype(np.float32)
    indices = np.argsort(vectors[:, 0]) if order != "clustered" else np.argsort(np.abs(vectors[:, 0]))
    vectors = torch.from_numpy(vectors[indices[::-1] if order == "falling" else indices].copy())
    queries = torch.eye(16)[:3] + torch.from_numpy(rng.normal(scale=0.01, size=(3, 16)).astype(np.float32))
    results, expected = search(queries, blocks(vectors, 50), 8, dtype), reference_results(queries, vectors, 8)
    np.testing.assert_array_equal(results[0], expected[0])
    np.testing.assert_array_equal(results[1], expected[1])


@pytest.mark.parametrize("scale", [1e-40, 1e-22, 1e-3, 1.0, 1e3, 1e15])
def test_the_bound_holds(scale: float) -> None:
    """Against products in float64, and it is not much larger than needed. 1e-22: products are too small for a normal number."""
    rng = np.random.default_rng(0)
    queries, vectors = (torch.from_numpy(rng.normal(size=(n, 384)).astype(np.float32)) for n in (20, 3000))
    vectors[:, :300] *= 1 + 2**-9  # just between two numbers of bfloat16
    vectors *= scale
    queries *= min(scale, 1e3)
    rounded, rounded_vectors = Rounded.of(queries, torch.bfloat16, together=False), Rounded.of(vectors, torch.bfloat16, together=True)
    products = rounded.values_XD @ rounded_vectors.values_XD.T
    exact_scores = queries.double() @ vectors.double().T
    limit = error_bound(rounded, rounded_vectors)
    difference = (products.double() - exact_scores).abs()
    allowed = limit[:, None].double() + products.double().abs() * cpu.ROUNDING
    assert (difference <= allowed).all()
    assert at_least(products, exact_scores.float().amin(1) - limit).all()
    assert torch.from_numpy(at_least(products, exact_scores.float().amax(1) - limit)).any(1).all()
    assert (np.abs(all_scores(queries, vectors) - exact_scores.numpy()) <= limit.numpy()[:, None]).all()
    if scale == 1:
        assert (difference.amax(1) >= allowed.amin(1) / 20).all()


@DTYPES
def test_norms_are_those_of_the_larger_of_exact_and_rounded_vectors(dtype: torch.dtype) -> None:
    """Vectors that are rounded up everywhere, down everywhere, not at all, and some at random; in float64."""
    numbers = torch.tensor([1 + 2**-8 + 2**-20, 1 + 2**-8 - 2**-20, 1.0, 0.0])[:, None].expand(4, 64)
    vectors = torch.cat([numbers, torch.from_numpy(np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32))])
    separate, joint = (Rounded.of(vectors, dtype, together=together) for together in (False, True))
    exact, values = vectors.double(), separate.values_XD.double()
    larger_X, error_X = torch.maximum(exact.norm(dim=1), values.norm(dim=1)), (exact - values).norm(dim=1)
    assert (separate.norm * (1 + 1e-6) >= larger_X).all() and (separate.norm <= (1 + 2**-7) * larger_X).all()
    torch.testing.assert_close(separate.error.double(), error_X, rtol=1e-5, atol=0)
    assert joint.norm == separate.norm.max() and joint.error == separate.error.max()


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("best_first", [False, True])
def test_rounding_errors_that_all_have_one_direction(block: int, best_first: bool) -> None:
    """The best row and the query beside it are rounded down everywhere, the second best up: its product is larger by almost 2%."""
    down, up = 1 + 2**-8 - 2**-20, 1 + 2**-8 + 2**-20
    query, best, second = torch.zeros(1, 256), torch.zeros(256), torch.zeros(256)
    query[0, :128], query[0, 128:], best[:128], second[128:] = down, up, down, up
    second[-1] -= 2**-10
    vectors = torch.stack([best, second] if best_first else [second, best])
    products = (query.bfloat16() @ vectors.bfloat16().T)[0].tolist()
    assert products[best_first] > products[not best_first] * 1.015 and query[0] @ best > query[0] @ second
    limit = error_bound(Rounded.of(query, torch.bfloat16, together=False), Rounded.of(vectors, torch.bfloat16, together=True))
    assert 0.65 * limit < query[0] @ best - products[not best_first] < limit
    best_scores, rows = search(query, blocks(vectors, block), 1, torch.bfloat16)
    assert rows.tolist() == [[0 if best_first else 1]] and best_scores[0, 0] == pytest.approx(float(query[0] @ best), rel=1e-6)


@pytest.mark.parametrize("block", [4, 10, 40])
@pytest.mark.parametrize("best_first", [False, True])
def test_products_that_are_as_wrong_as_the_bound_allows(block: int, best_first: bool) -> None:
    """Those of the five best rows are too small by the whole bound, the others too large by it."""
    score_R, keep, error = torch.linspace(1.001, 1.0, 40), 5, torch.tensor(0.5)
    off_R = torch.full((40,), 0.5)
    off_R[:keep] = -0.5
    if not best_first:
        score_R, off_R = score_R.flip(0), off_R.flip(0)
    query = Rounded(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), torch.zeros(1))
    rows = [
        Rounded(s[:, None], (s + error_S)[:, None], torch.tensor(1.6), error)
        for s, error_S in zip(score_R.split(block), off_R.split(block), strict=True)
    ]
    part = cpu.Part(query, Best(1, keep))
    for number, block_rows in enumerate(rows):
        part.search(number * block, block_rows)
    best = range(keep) if best_first else range(39, 39 - keep, -1)
    assert part.best.ranked()[1].tolist() == [list(best)]


def test_products_that_are_too_large_for_a_number() -> None:
    vectors = torch.tensor([[3.396e38], [1.0], [3.397e38], [3.4e38], [2.0]])
    best_scores, rows = search(torch.ones(1, 1), blocks(vectors, 4), 2, torch.bfloat16)
    assert rows.tolist() == [[3, 2]] and best_scores[0].tolist() == vectors[[3, 2], 0].tolist()


@pytest.mark.parametrize("most", [0, -1, 10**6])
def test_scores_have_the_same_bits_in_either_order(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries, vectors = (torch.from_numpy(rng.normal(size=(n, 37)).astype(np.float32)) for n in (9, 50))
    query_N = np.sort(rng.integers(9, size=300))
    row_N = rng.integers(50, size=300)
    expected = [
        scores(queries[q : q + 1], vectors[r : r + 1], np.array([0]), np.array([0]))[0] for q, r in zip(query_N, row_N, strict=True)
    ]
    monkeypatch.setattr(cpu, "OFTEN", most)
    assert scores(queries, vectors, row_N, query_N).tolist() == expected
    exact_scores = (queries.double()[query_N] * vectors.double()[row_N]).sum(1).numpy()
    np.testing.assert_allclose(expected, exact_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2**15, 2**15 + 1, 40_000])
def test_scores_of_rows_beyond_sixteen_bits(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "OFTEN", 0)  # by row, however few pairs a row has
    vectors = torch.arange(rows, dtype=torch.float32)[:, None]
    row_N = np.array([rows - 1, 3, 2**15 - 1, rows - 2, 0, rows - 1])
    assert scores(torch.tensor([[1.0], [2.0]]), vectors, row_N, np.array([0, 0, 0, 1, 1, 1])).tolist() == [
        *row_N[:3].tolist(), *(2 * row_N[3:]).tolist()
    ]  # fmt: skip


def test_bits_in_the_order_of_their_numbers() -> None:
    numbers = torch.tensor([-torch.inf, -3e38, -2.0, -1.5, -1e-40, 0.0, 1e-40, 1.0, 1.0078125, 5e30, torch.inf]).bfloat16()
    bits = numbers.view(torch.int16).numpy()
    assert (np.diff(ordered(bits).astype(int)) > 0).all() and ordered(ordered(bits)).tolist() == bits.tolist()


@DTYPES
@pytest.mark.parametrize("shift", [-10.0, 0.0, 10.0])
@pytest.mark.parametrize(("count", "keep"), [(300, 7), (300, 300), (41, 20), (100, 60)])
def test_a_number_that_at_least_k_products_reach(dtype: torch.dtype, shift: float, count: int, keep: int) -> None:
    """And not many more, whatever their signs."""
    products = (torch.from_numpy(np.random.default_rng(0).normal(size=(5, count)).astype(np.float32)) + shift).to(dtype)
    least = kth_largest(products, keep)
    assert least.dtype == torch.float32 and least.shape == (5,)
    assert ((products >= least[:, None]).sum(1) >= keep).all() and ((products > least[:, None]).sum(1) < 2 * keep).all()
    if count < 4 * keep:
        assert torch.equal(least, products.float().sort(1, descending=True).values[:, keep - 1])
    mixed = at_least(products, least)
    np.testing.assert_array_equal(mixed, (products.float() >= least[:, None]).numpy())


def test_few_rows_of_a_usual_corpus_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors, queries = (torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(n, 64)).astype(np.float32))) for n in (20000, 30))
    counts = list[int]()

    def count_rows(*args: torch.Tensor) -> np.ndarray:
        counts.append(len(args[2]))
        return scores(*args)

    monkeypatch.setattr(cpu, "scores", count_rows)
    best_scores, rows = search(queries, blocks(vectors, 1000), 50, torch.bfloat16)
    exact_scores = np.sort(queries.double().numpy() @ vectors.double().numpy().T, axis=1)[:, ::-1][:, :50]
    assert np.abs(best_scores - exact_scores).max() < 1e-6 and (np.diff(np.sort(rows), axis=1) > 0).all()
    assert sum(counts) < 30 * 50 * 10  # of 20,000 a query


def test_nothing_and_no_query() -> None:
    best_scores, rows = search(torch.zeros(2, 3), [], 4, torch.float32)
    assert np.isneginf(best_scores).all() and (rows == -1).all() and best_scores.shape == rows.shape == (2, 4)
    best_scores, rows = search(torch.zeros(0, 3), [(0, torch.ones(5, 3))], 4, torch.bfloat16)
    assert best_scores.shape == rows.shape == (0, 4) and best_scores.dtype == np.float32 and rows.dtype == np.int64


def test_scored_rows_of_any_number_are_kept_in_order() -> None:
    """More rows of a query than there is room for, none of another one."""
    best, score_N = Best(3, 4), np.random.default_rng(0).permutation(40).astype(np.float32)
    best.add(np.array([0] * 40 + [2]), np.arange(41), np.append(score_N, np.float32(7)))
    best_scores, rows = best.ranked()
    assert best_scores[0].tolist() == [39, 38, 37, 36] and score_N[rows[0]].tolist() == best_scores[0].tolist()
    assert rows[1].tolist() == [-1] * 4 and rows[2].tolist() == [40, -1, -1, -1]
