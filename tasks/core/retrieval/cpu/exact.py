"""Exact search on a CPU: products in the arithmetic that the CPU computes fastest, with the results of float32.

Score of query q and row r:   s(q, r), their inner product in float32, with the same bits whichever block r is in
Product:                      h(q, r), of q and r rounded to bfloat16 if the CPU multiplies that, itself in bfloat16
Bound:                        |s - h| <= e(q, r) before h is rounded, with e as in tasks.core.retrieval.gpu.exact

A lower bound l of a query's K-th best score is known from the first block on: the K-th best s so far, or a number that K of the h reach,
less e and its rounding. Only rows whose h is at least l - e are scored by s: a few of each later block.

Q queries, R rows of a block, D width, K rows kept, N pairs of a query and a row.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tasks.core.machine.devices import one_thread
from tasks.core.retrieval.ranked import Floats, refuse_overflow
from tasks.core.tables.ids import Ints, concat_ranges

QUERIES = 1024  # of a product, at most
PRODUCTS = 2**19  # that are computed and compared at a time: a MiB in bfloat16
FEWEST = 128  # queries that are worth a thread of their own
ROOM = 1  # places beyond K, as a multiple of K, for rows that are scored but not yet compared with the best
OFTEN = 4  # so many pairs per row are worth sorting by row
AHEAD = 1  # blocks that the faster threads may be ahead
SLACK = 1.01  # for the rounding of the bounds themselves
ROUNDING = 2.0**-8  # more than the share of a product that bfloat16 may lose
LEAST = 2.0**-100  # more than the loss where products are too small for a normal number


@dataclass(frozen=True)
class Rounded:
    """Vectors float32 [X, D], the same in the type of the products, and norms: those of each query [X], or the largest of the rows."""

    exact_XD: torch.Tensor
    values_XD: torch.Tensor
    norm: torch.Tensor  # at least that of the exact and of the rounded vectors
    error: torch.Tensor  # that of the difference of both

    @classmethod
    def of(cls, exact_XD: torch.Tensor, dtype: torch.dtype, *, together: bool) -> "Rounded":
        """Round vectors, each with its own norms, or with the largest ones if `together`."""
        values_XD = exact_XD.to(dtype)
        norm_X = torch.linalg.vector_norm(exact_XD, dim=1)
        error_X = torch.linalg.vector_norm(exact_XD - values_XD, dim=1) if dtype != torch.float32 else torch.zeros_like(norm_X)
        norm_X = norm_X + error_X
        return cls(exact_XD, values_XD, *((norm_X.amax(), error_X.amax()) if together and len(norm_X) else (norm_X, error_X)))

    def __len__(self) -> int:
        return len(self.values_XD)

    def exact(self, row_N: Ints) -> tuple[torch.Tensor, Ints]:
        """Exact vectors [X, D] that include those of `row_N`, and the places of these among them [N]."""
        return self.exact_XD, row_N

    def part(self, rows: slice) -> "Rounded":
        """Some of the queries."""
        return Rounded(self.exact_XD[rows], self.values_XD[rows], self.norm[rows], self.error[rows])


class Best:
    """The K best scored rows of each query, then in no order the rows that have been scored since."""

    def __init__(self, queries: int, keep: int) -> None:
        self.keep = keep
        self.scores_QW = np.full((queries, (1 + ROOM) * keep), -np.inf, dtype=np.float32)
        self.rows_QW = np.full(self.scores_QW.shape, -1, dtype=np.int64)
        self.used_Q = np.full(queries, keep)
        self.least_Q = torch.full((queries,), -torch.inf)  # K-th best score, as far as compared

    def add(self, query_N: Ints, row_N: Ints, score_N: Floats) -> None:
        """Add scored rows, which are in the order of queries."""
        counts_Q = np.bincount(query_N, minlength=len(self.used_Q))
        place_N = concat_ranges(0, counts_Q)
        room, most = ROOM * self.keep, int(counts_Q.max())
        for start in range(0, most, room):
            selection: Any = slice(None) if most <= room else (place_N >= start) & (place_N < start + room)
            added_Q = np.clip(counts_Q - start, 0, room)
            if int((self.used_Q + added_Q).max()) > self.scores_QW.shape[1]:
                self.compare()
            query, column = query_N[selection], self.used_Q[query_N[selection]] + place_N[selection] - start
            self.scores_QW[query, column], self.rows_QW[query, column] = score_N[selection], row_N[selection]
            self.used_Q += added_Q

    def compare(self) -> None:
        """Keep only the K best of each query; of those that tie at the last rank, the first rows."""
        scores_QW, rows_QW = torch.from_numpy(self.scores_QW), torch.from_numpy(self.rows_QW)
        best_QK, column_QK = scores_QW.topk(self.keep, dim=1, sorted=False)
        self.least_Q = best_QK.amin(1)
        least = self.least_Q.numpy()[:, None]
        tied = np.flatnonzero((np.count_nonzero(self.scores_QW >= least, axis=1) > self.keep) & np.isfinite(least[:, 0]))
        if len(tied):
            column_QK[tied] = torch.from_numpy(np.lexsort((self.rows_QW[tied], -self.scores_QW[tied]))[:, : self.keep])
        scores_QW[:, : self.keep], rows_QW[:, : self.keep] = scores_QW.gather(1, column_QK), rows_QW.gather(1, column_QK)
        scores_QW[:, self.keep :] = -torch.inf
        self.used_Q[:] = self.keep

    def ranked(self) -> tuple[Floats, Ints]:
        """Scores and rows [Q, K], best first, ties by row."""
        self.compare()
        scores_QK, rows_QK = self.scores_QW[:, : self.keep], self.rows_QW[:, : self.keep]
        order_QK = np.lexsort((rows_QK, -scores_QK))
        return np.take_along_axis(scores_QK, order_QK, 1), np.take_along_axis(rows_QK, order_QK, 1)


@dataclass(frozen=True)
class Part:
    """Queries that are multiplied together, and their best rows."""

    queries: Rounded
    best: Best

    def search(self, first: int, rows: Rounded) -> None:
        """Search a block, whose first row is `first`."""
        bound_Q, least_Q, keep = error_bound(self.queries, rows), self.best.least_Q, self.best.keep
        queries, count = len(self.queries), len(rows)
        has_bound = bool(least_Q.isfinite().all()) or count <= keep
        query_N, row_N = self._near(rows, least_Q - bound_Q) if has_bound else (np.empty(0, np.int64), np.empty(0, np.int64))
        if not has_bound or len(query_N) > queries * keep:
            products_QR = self.queries.values_XD @ rows.values_XD.T
            kth_Q = kth_largest(products_QR, keep)
            least_Q = torch.fmax(least_Q, kth_Q - ROUNDING * kth_Q.abs() - bound_Q)  # fmax: the difference of infinities is NaN
            query_N, row_N = pairs(at_least(products_QR, least_Q - bound_Q))
        if len(query_N):
            self.best.add(query_N, row_N + first, scores(self.queries.exact_XD, *rows.exact(row_N), query_N))

    def _near(self, rows: Rounded, low_Q: torch.Tensor) -> tuple[Ints, Ints]:
        """Pairs of queries and rows whose products `reach` the limit, by query; so few products at a time that a core's cache has them."""
        size = 1 << max(0, (PRODUCTS // max(1, len(self.queries))).bit_length() - 1)
        parts = []
        for start in range(0, len(rows), size):
            query_N, row_N = pairs(at_least(self.queries.values_XD @ rows.values_XD[start : start + size].T, low_Q))
            parts.append((query_N, row_N + start))
        query_N, row_N = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order_N = np.argsort(query_N.astype(np.int16), kind="stable")  # in linear time
        return query_N[order_N], row_N[order_N]


def error_bound(queries: Rounded, rows: Rounded) -> torch.Tensor:
    """The bound e of each query for all rows of a block, [Q]; infinite where a norm is too large for a number."""
    sums = (queries.exact_XD.shape[1] + 16) * 2.0**-22
    bound_Q = SLACK * (queries.error * rows.norm + queries.norm * (rows.error + sums * rows.norm)) + LEAST
    return bound_Q.nan_to_num(nan=torch.inf, posinf=torch.inf)  # 0 times infinity is not a number


def at_least(products_QR: torch.Tensor, low_Q: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Which products are at least `low_Q`, a limit before rounding: bool [Q, R]. It is rounded as products are, which keeps their order."""
    low_Q1 = low_Q.to(products_QR.dtype)[:, None]
    if products_QR.dtype == torch.float32:
        near_QR: npt.NDArray[np.bool_] = products_QR.numpy() >= low_Q1.numpy()  # in half of torch's time
        return near_QR
    bits_QR, low_bits_Q1 = (numbers.view(torch.int16).numpy() for numbers in (products_QR, low_Q1))
    if (low_bits_Q1 > 0).all():  # bits of positive numbers have their order, and are above those of negative ones
        return bits_QR >= low_bits_Q1
    return ordered(bits_QR) >= ordered(low_bits_Q1)


def pairs(near_QR: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """The queries and rows at which `near_QR` is true, by query."""
    place_N = np.flatnonzero(near_QR)
    query_N = place_N // near_QR.shape[1]
    return query_N, place_N - query_N * near_QR.shape[1]


def kth_largest(products_QR: torch.Tensor, keep: int) -> torch.Tensor:
    """The K-th largest product of each query, or a number a little below it, float32 [Q]: the K-th largest of the maxima of groups."""
    queries, count = products_QR.shape
    size = max(1, count // (2 * keep))  # of a group; products after the last group are ignored
    half = products_QR.dtype == torch.bfloat16
    numbers_QR = ordered(products_QR.view(torch.int16).numpy()) if half else products_QR.numpy()
    largest_QG = np.fmax.reduce(numbers_QR[:, : count // size * size].reshape(queries, size, -1), axis=1)  # fmax ignores NaN
    kth_Q = np.partition(largest_QG, -keep, axis=1)[:, -keep]
    return torch.from_numpy(ordered(kth_Q)).view(torch.bfloat16).float() if half else torch.from_numpy(kth_Q)


def ordered(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """From the bits of bfloat16 numbers, integers in the order of these numbers; from such integers, the bits."""
    return bits ^ (bits >> 15 & 0x7FFF)


def scores(queries_QD: torch.Tensor, vectors_RD: torch.Tensor, row_N: Ints, query_N: Ints) -> Floats:
    """Scores of pairs, given in the order of queries, float32 [N]. Where rows have many queries, each row is read from memory once."""
    if len(row_N) < OFTEN * len(vectors_RD):
        return _products(queries_QD, vectors_RD, query_N, row_N)
    order_N = np.argsort(row_N.astype(np.int16 if len(vectors_RD) < 2**15 else np.int64), kind="stable")  # of int16 in linear time
    scores_N = np.empty(len(row_N), dtype=np.float32)
    scores_N[order_N] = _products(vectors_RD, queries_QD, row_N[order_N], query_N[order_N])
    return scores_N


def _products(left_XD: torch.Tensor, right_YD: torch.Tensor, left_N: Ints, right_N: Ints) -> Floats:
    """Inner products of pairs in the order of the left, float32 [N]. Each is computed alone, so left and right may be exchanged."""
    ends_X = np.cumsum(np.bincount(left_N, minlength=len(left_XD)))
    starts = torch.from_numpy(np.concatenate([[0], ends_X]))
    size = (len(left_XD), len(right_YD))
    pairs_XY = torch.sparse_csr_tensor(starts, torch.from_numpy(right_N), torch.zeros(len(right_N)), size, check_invariants=False)
    products_N: Floats = torch.sparse.sampled_addmm(pairs_XY, left_XD, right_YD.T, beta=0.0).values().numpy()
    return products_N


def search(
    queries_QD: torch.Tensor,
    blocks: Iterable[tuple[int, Rounded]],
    keep: int,
    dtype: torch.dtype,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product, best first, ties by row: scores float32 and rows int64, [Q, K]; -inf and -1 beyond the last.

    `blocks` are (first row, the vectors from there on, all finite), `dtype` is that of the products.
    """
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)  # sampled_addmm takes no other
    queries, threads = Rounded.of(queries_QD, dtype, together=False), torch.get_num_threads()
    count, one_thread_only = -(-len(queries_QD) // QUERIES), len(queries_QD) < FEWEST * threads
    count = count if one_thread_only else -(-count // threads) * threads
    edges = np.linspace(0, len(queries_QD), count + 1).astype(int).tolist()
    parts = [Part(queries.part(slice(start, end)), Best(end - start, keep)) for start, end in pairwise(edges)]
    with ExitStack() as stack:
        worker_count = 0 if one_thread_only else stack.enter_context(one_thread())
        workers = [stack.enter_context(ThreadPoolExecutor(1, "search")) for _ in range(worker_count)]
        waiting, rows_searched = deque[tuple[int, list[Future[None]]]](), 0
        for first, rows in blocks:
            futures = [worker.submit(_search, parts[number::threads], first, rows) for number, worker in enumerate(workers)]
            if one_thread_only:
                _search(parts, first, rows)
            waiting.append((len(rows), futures))
            rows_searched += len(rows)
            if len(waiting) > AHEAD:
                done(_finished(*waiting.popleft()))
        for size, futures in waiting:
            done(_finished(size, futures))
    results = [part.best.ranked() for part in parts]
    empty = np.empty((0, keep), np.float32), np.empty((0, keep), np.int64)
    scores_QK, rows_QK = (np.concatenate(arrays) for arrays in zip(empty, *results, strict=True))
    refuse_overflow(scores_QK, rows_searched)
    return scores_QK, rows_QK


def _search(parts: list[Part], first: int, rows: Rounded) -> None:
    for part in parts:
        part.search(first, rows)


def _finished(size: int, futures: list[Future[None]]) -> int:
    """Wait until all threads have searched a block; return its number of rows."""
    for future in futures:
        future.result()
    return size
