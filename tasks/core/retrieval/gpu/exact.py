"""Exact search with products in half precision, whose results are those of float32.

Score of query q and row r:      s(q, r), their inner product in float32, summed in a fixed order (`inner_products`)
Product in half precision:       h(q, r), of q and r rounded to float16, summed in float32 in any order
Bound:                           |s - h| <= e(q, r) = |q - q16| |r| + |q16| |r - r16| + c |q| |r|

The first two terms are Cauchy and Schwarz's, the last is for the sums: c = (D + 16) 2^-22 holds for tensor cores, too, which
truncate (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 2021). Queries and rows are first
scaled by powers of two, so that none overflows.

Of each group of rows, those of the K' largest h are scored by s, and the best K are kept. The K' largest lie in the K' blocks of
rows whose largest h are the largest, so of most h only the largest of a block is compared with others. A row that was not scored has
s <= h_K' + e. Where that is below the K-th best score at the end, the K best are proven; `Counted` says for how many queries it
is not, and for those, together, each row with h + e of at least the K-th best score is scored.

So scores and order depend neither on how rows are grouped nor on the GPU: by score, ties by row. Q queries, R rows, D width, U unproven
queries, P of them in one product, N pairs of a query and a row.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch

from tasks.core.errors import UserError
from tasks.core.machine.devices import Coming, free_bytes, to_tensor
from tasks.core.retrieval.gpu.reading import Given, group_blocks
from tasks.core.retrieval.ranked import Floats, refuse_overflow
from tasks.core.tables.ids import Ints

QUERIES = 1024  # of a product
PRODUCTS = 2**28  # at a time, at most: a GiB
ROWS = 2**19  # of a group on its way from the disk, at most: two are in pinned memory
LEAST = 4096  # rows of a group, on however small a GPU
SPARE = 64  # rows scored of each group beyond K, at least
PAIRS = 2**18  # query and row, scored at a time, at most
NUMBERS = 2**28  # of the rows of such pairs, at most: a GiB in float32
GATHERED = 2**16  # pairs scored at a time where each has a copy of its query, at most
SLACK = 1.01  # for the rounding of the bounds themselves


@dataclass
class Counted:
    """Queries searched, and those that needed a second pass."""

    queries: int = 0
    again: int = 0


def rows_at_once(width: int, device: torch.device) -> int:
    """How many rows of a group fit in half of the GPU's free memory: vectors in four forms, and the products of one part."""
    return max(LEAST, min(ROWS, (free_bytes(device) // 2 - 8 * products_at_once(device)) // (16 * width)))


def products_at_once(device: torch.device) -> int:
    """How many products fill a sixteenth of a GPU's memory, at most."""
    return PRODUCTS if device.type == "cpu" else min(PRODUCTS, torch.cuda.get_device_properties(device).total_memory // 64)


def inner_products(left_XD: torch.Tensor, right_XD: torch.Tensor) -> torch.Tensor:
    """Inner products [X] in float32: halves are added to each other until one number is left, so bits depend on nothing else."""
    products_XD = left_XD.float() * right_XD.float()
    width = products_XD.shape[-1]
    while width > 1:
        half = width // 2
        added_XD = products_XD[..., :half] + products_XD[..., half : 2 * half]
        products_XD = torch.cat([added_XD, products_XD[..., 2 * half :]], dim=-1) if width % 2 else added_XD
        width = products_XD.shape[-1]
    return products_XD[..., 0]


@dataclass(frozen=True)
class Halved:
    """Vectors [X, D] in float16, scaled by 2^-`exponent`, and the norms that bound their errors."""

    values_XD: torch.Tensor
    exponent: torch.Tensor  # of queries [X, 1], of a group of rows a scalar
    norm: torch.Tensor  # the larger one of the exact and the rounded vectors'; of a group the largest
    error: torch.Tensor  # that of the difference of both

    @classmethod
    def of(cls, vectors_XD: torch.Tensor, *, together: bool) -> "Halved":
        """Round vectors, each with its own scale and norms, or with one for all if `together`. Those in float16 are used without a copy."""
        if together and vectors_XD.dtype == torch.float16:
            zero, norm_X = torch.zeros((), device=vectors_XD.device), torch.linalg.vector_norm(vectors_XD, dim=1, dtype=torch.float32)
            return cls(vectors_XD, zero.int(), norm_X.amax(), zero)
        exact_XD = vectors_XD.float()
        largest = exact_XD.abs().amax() if together else exact_XD.abs().amax(1, keepdim=True)
        exponent = torch.frexp(largest).exponent
        exact_XD = torch.ldexp(exact_XD, -exponent)
        values_XD = exact_XD.half()
        norm_X = torch.maximum(exact_XD.norm(dim=1), values_XD.float().norm(dim=1))
        error_X = (exact_XD - values_XD.float()).norm(dim=1)
        return cls(values_XD, exponent, *((norm_X.amax(), error_X.amax()) if together else (norm_X, error_X)))


def spare_rows(keep: int, queries: int) -> int:
    """How many rows to score beyond K in the first group. The more alike the vectors, the more rows are near the K-th.

    With 200,000 rows of synthetic corpora and a K of 216 to 1,016, a query needs at most K / 3 at a mean cosine of 0.8, K / 2 to 2/3 K at
    0.9, and K to 1.4 K at 0.95. A second pass takes about as long as the first. K more rows cost next to nothing for few queries, and up to
    half of a pass for many (estimated). In later groups SPARE are enough, since the K-th best is that of all groups.
    """
    return max(SPARE, keep if queries * keep <= PAIRS else keep // 2)


def products(left_QD: torch.Tensor, right_RD: torch.Tensor) -> torch.Tensor:
    """float32 [Q, R] of float16 vectors. A CPU, where only tests call this, multiplies the same numbers in float32."""
    if left_QD.device.type == "cuda":
        products_QR: torch.Tensor = torch.mm(left_QD, right_RD.T, out_dtype=torch.float32)
        return products_QR
    return left_QD.float() @ right_RD.float().T


def highest_products(left_QD: torch.Tensor, right_RD: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `keep` largest products of each query, best first, and their rows, [Q, K]; which of equal ones is not specified."""
    at_once = max(1, products_at_once(left_QD.device) // max(1, len(left_QD)))
    best: tuple[torch.Tensor, torch.Tensor] | None = None
    for first in range(0, len(right_RD), at_once):
        values_QK, places_QK = highest(products(left_QD, right_RD[first : first + at_once]), keep)
        places_QK = places_QK + first
        if best is not None:
            values_QK, places_QK = torch.cat([best[0], values_QK], dim=1), torch.cat([best[1], places_QK], dim=1)
            values_QK, order_QK = values_QK.topk(min(keep, values_QK.shape[1]), dim=1)
            places_QK = places_QK.gather(1, order_QK)
        best = values_QK, places_QK
    assert best is not None, "a group has rows"
    return best


def highest(values_QR: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk` of each row, best first: of the numbers themselves, or of those in the blocks with the largest maxima, [Q, min(K, R)].

    A number among the K largest is at most its block's maximum. So if its block is not one of the K, those hold K numbers as large. The
    numbers of a block are as far apart as there are blocks: then neighbors are read together.
    """
    count, rows = values_QR.shape
    keep = min(keep, rows)
    size = 1 << max(0, (rows // max(1, keep)).bit_length() // 2)  # about the square root: as many maxima as numbers of K blocks
    blocks = rows // size
    if blocks < 2 * keep:
        return values_QR.topk(keep, dim=1)
    whole_QSB, rest_QN = values_QR[:, : size * blocks].view(count, size, blocks), values_QR[:, size * blocks :]
    block_Q1K = whole_QSB.amax(1).topk(keep, dim=1, sorted=False).indices.unsqueeze(1)
    places_QN = (block_Q1K + blocks * torch.arange(size, device=values_QR.device).unsqueeze(1)).flatten(1)
    rest_N = torch.arange(size * blocks, rows, device=values_QR.device)
    places_QN = torch.cat([places_QN, rest_N.expand(count, -1)], dim=1)
    inside_QN = whole_QSB.gather(2, block_Q1K.expand(-1, size, -1)).flatten(1)
    values_QK, order_QK = torch.cat([inside_QN, rest_QN], dim=1).topk(keep, dim=1)
    return values_QK, places_QN.gather(1, order_QK)


def bound(queries: Halved, rows: Halved, width: int) -> torch.Tensor:
    """The bound e of each query for all rows of a group, [Q], in the scale of their products."""
    sums = (width + 16) * 2.0**-22
    return SLACK * (queries.error * rows.norm + queries.norm * (rows.error + sums * rows.norm)) + 2.0**-24  # for underflow


def search(
    queries_QD: Floats | torch.Tensor,
    blocks: Iterable[tuple[int, Given]],
    keep: int,
    device: torch.device,
    done: Callable[[int], None] = lambda _: None,
    *,
    rows: int = ROWS,
    known: dict[int, Halved] | None = None,
    counted: Counted | None = None,
) -> tuple[Floats, Ints]:
    """The rows of largest inner product, best first, ties by row: scores float32 and rows int64, [Q, keep]; -inf and -1 beyond the last.

    `blocks` (first row, vectors) may be passed over twice; `rows` of them are searched at a time. `known` keeps the rounded vectors of each
    group, by its first row, for the next search of the same vectors. UserError for a vector that is not finite. Nothing is read from the
    GPU before all rows have been searched, and then all at once.
    """
    assert not isinstance(blocks, Iterator), "blocks that may be passed over twice"
    tensor = queries_QD if isinstance(queries_QD, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(queries_QD))
    asked_QD = tensor.to(device).float()
    halved = Halved.of(asked_QD, together=False)
    best = torch.full((len(asked_QD), keep), -torch.inf, device=device)
    best_rows = torch.full((len(asked_QD), keep), -1, dtype=torch.int64, device=device)
    left_out = torch.full((len(asked_QD),), -torch.inf, device=device)
    finite, edges = [], []
    for first, group_RD, sizes in group_blocks(blocks, rows, device):
        group = (known or {}).get(first) or Halved.of(group_RD, together=True)
        if known is not None:
            known[first] = group
        finite.append(torch.isfinite(group.norm))
        edges.append((first, first + len(group_RD) - 1))
        limit = bound(halved, group, asked_QD.shape[1])
        count = min(keep + (spare_rows(keep, len(asked_QD)) if len(edges) == 1 else SPARE), len(group_RD))
        for start in range(0, len(asked_QD), QUERIES):
            part = slice(start, start + QUERIES)
            half_QK, place_QK = highest_products(halved.values_XD[part], group.values_XD, count)
            if count < len(group_RD):
                highest_Q = torch.ldexp(half_QK[:, -1] + limit[part], halved.exponent[part, 0] + group.exponent)
                left_out[part] = torch.maximum(left_out[part], highest_Q)
            scores_QK = _scores(asked_QD[part], group_RD, place_QK)
            best[part], best_rows[part] = merged(best[part], best_rows[part], scores_QK, place_QK + first)
        for size in sizes:
            done(size)
    proven_Q = (best[:, -1] > left_out) | (left_out == -torch.inf)
    is_finite = torch.stack(finite).all() if finite else torch.ones((), dtype=torch.bool, device=device)
    scores, found_rows, proven, all_finite = Coming(best, best_rows, proven_Q, is_finite).arrays()
    if not all_finite:
        _refuse_infinite(finite, edges)
    refuse_overflow(scores, sum(last + 1 - first for first, last in edges))
    unproven = np.flatnonzero(~proven)
    if counted is not None:
        counted.queries += len(best)
        counted.again += len(unproven)
    if not len(unproven):
        return scores, found_rows
    unproven_U = to_tensor(unproven, device)
    unproven_queries = Halved(*(each[unproven_U] for each in (halved.values_XD, halved.exponent, halved.norm, halved.error)))
    results = _search_again(
        asked_QD[unproven_U], unproven_queries, best[unproven_U, -1], group_blocks(blocks, rows, device), keep, known or {}
    )
    scores[unproven], found_rows[unproven] = results.arrays()
    refuse_overflow(scores, keep)
    return scores, found_rows


def merged(
    scores_QK: torch.Tensor, rows_QK: torch.Tensor, more_QN: torch.Tensor, more_rows_QN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The K best of K and N scored rows, by score, ties by row."""
    scores, rows = torch.cat([scores_QK, more_QN], dim=1), torch.cat([rows_QK, more_rows_QN], dim=1)
    order = rows.sort(dim=1, stable=True).indices
    scores, rows = scores.gather(1, order), rows.gather(1, order)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, : scores_QK.shape[1]]
    return scores.gather(1, order), rows.gather(1, order)


def _scores(queries_QD: torch.Tensor, vectors_RD: torch.Tensor, places_QK: torch.Tensor) -> torch.Tensor:
    """Scores of each query's rows, [Q, K]."""
    at_once = max(1, min(PAIRS, NUMBERS // vectors_RD.shape[1]) // max(1, places_QK.shape[1]))
    parts = [slice(start, start + at_once) for start in range(0, len(queries_QD), at_once)]
    return torch.cat([inner_products(queries_QD[part].unsqueeze(1), vectors_RD[places_QK[part]]) for part in parts])


def _refuse_infinite(finite: list[torch.Tensor], edges: list[tuple[int, int]]) -> NoReturn:
    """UserError naming the first group with a vector that is not finite."""
    first, last = edges[torch.stack(finite).tolist().index(False)]
    raise UserError(f"vectors of rows {first} to {last}: found NaN or infinity; train or encode that model again")


def _search_again(
    asked_UD: torch.Tensor,
    halved: Halved,
    least_U: torch.Tensor,
    groups: Iterable[tuple[int, torch.Tensor, list[int]]],
    keep: int,
    known: dict[int, Halved],
) -> Coming:
    """Scores and rows [U, K] of unproven queries: every row that may be among their best is scored.

    `least_U` is the K-th best of the true scores so far, so no row below it is among the K best.
    """
    best = torch.full((len(asked_UD), keep), -torch.inf, device=asked_UD.device)
    best_rows = torch.full(best.shape, -1, dtype=torch.int64, device=best.device)
    for first, group_RD, _ in groups:
        group = known.get(first) or Halved.of(group_RD, together=True)
        limit_U = bound(halved, group, asked_UD.shape[1])
        for start in range(0, len(asked_UD), QUERIES):
            part = slice(start, start + QUERIES)
            asked_PD = asked_UD[part]
            for query_N, place_N in _near(halved.values_XD[part], group, limit_U[part], halved.exponent[part], least_U[part]):
                starts = range(0, len(query_N), GATHERED)
                pairs = [(query_N[n : n + GATHERED], place_N[n : n + GATHERED]) for n in starts]
                scores_N = torch.cat([inner_products(asked_PD[query], group_RD[place]) for query, place in pairs])
                best[part], best_rows[part] = merge_pairs(best[part], best_rows[part], query_N, scores_N, place_N + first)
    return Coming(best, best_rows)


def _near(
    values_PD: torch.Tensor, rows: Halved, limit_P: torch.Tensor, exponent_P1: torch.Tensor, least_P: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Queries and rows, [N] in parts of about PAIRS, whose scores may be at least `least_P`.

    The program waits for the number of such pairs. An eighth of the products that fit is computed at a time: all may be such pairs.
    """
    rows_RD, pending, count = rows.values_XD, list[tuple[torch.Tensor, torch.Tensor]](), 0
    at_once = max(1, products_at_once(values_PD.device) // (8 * len(values_PD)))
    for start in range(0, len(rows_RD), at_once):
        half_PR = products(values_PD, rows_RD[start : start + at_once]).add_(limit_P.unsqueeze(1))
        near_PR = torch.ldexp(half_PR, exponent_P1 + rows.exponent) >= least_P.unsqueeze(1)
        query_N, place_N = near_PR.nonzero(as_tuple=True)
        pending.append((query_N, place_N + start))
        count += len(query_N)
        if count >= PAIRS or start + at_once >= len(rows_RD):
            query_N, place_N = (torch.cat(each) for each in zip(*pending, strict=True))
            yield from ((query_N[n : n + PAIRS], place_N[n : n + PAIRS]) for n in range(0, len(query_N), PAIRS))
            pending, count = [], 0


def merge_pairs(
    scores_PK: torch.Tensor, rows_PK: torch.Tensor, query_N: torch.Tensor, more_N: torch.Tensor, more_rows_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The K best of each query's K rows and its own of N further pairs, by score, ties by row.

    Pairs are sorted, not written by index: under deterministic algorithms, the program would wait for the GPU.
    """
    queries, keep = scores_PK.shape
    query = torch.cat([torch.arange(queries, device=query_N.device).unsqueeze(1).expand(-1, keep).flatten(), query_N])
    scores, rows = torch.cat([scores_PK.flatten(), more_N]), torch.cat([rows_PK.flatten(), more_rows_N])
    order = rows.sort(stable=True).indices
    order = order[scores[order].sort(descending=True, stable=True).indices]
    order = order[query[order].sort(stable=True).indices]
    starts_P1 = torch.searchsorted(query[order], torch.arange(queries, device=query_N.device)).unsqueeze(1)
    best_PK = order[starts_P1 + torch.arange(keep, device=query_N.device)]
    return scores[best_PK], rows[best_PK]
