"""Every loss and its gradient against a plain loop over queries and candidates, and a case worked by hand."""

import math

import numpy as np
import pytest
import torch

from tasks.train.losses import nll, ranknet, star

CASES = range(30)


def random_case(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, negatives and own hard negatives of a batch; some queries share positives, one has no negative at all."""
    rng = np.random.default_rng(seed)
    queries, hard = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    slots = queries * (1 + hard)
    scores = torch.tensor(rng.normal(scale=5, size=(queries, slots)), requires_grad=True)
    negative = rng.random((queries, slots)) < 0.7
    negative[np.arange(queries), np.arange(queries)] = False
    if seed % 5 == 0:
        negative[0] = False
    own = np.zeros((queries, slots), dtype=bool)
    for q in range(queries):
        own[q, queries + q * hard : queries + (q + 1) * hard] = True
    return scores, torch.from_numpy(negative), torch.from_numpy(own)


def loop_nll(scores: torch.Tensor, negative: torch.Tensor) -> tuple[float, np.ndarray]:
    """Value and gradient by plain loops: d/ds_j = (p_j - [j is the positive]) / B."""
    value, gradient = 0.0, np.zeros(scores.shape)
    for q in range(len(scores)):
        candidates = [q] + [j for j in range(scores.shape[1]) if negative[q, j]]
        total = sum(math.exp(scores[q, j].item()) for j in candidates)
        value -= math.log(math.exp(scores[q, q].item()) / total) / len(scores)
        for j in candidates:
            gradient[q, j] = (math.exp(scores[q, j].item()) / total - (j == q)) / len(scores)
    return value, gradient


def loop_pairs(scores: torch.Tensor, pairs: list[tuple[int, int]], weight: float) -> tuple[float, np.ndarray]:
    """Mean RankNet over the pairs (query, negative slot), times `weight`: d sp(s_n - s_p)/d s_n = sigmoid(s_n - s_p)."""
    value, gradient = 0.0, np.zeros(scores.shape)
    for q, j in pairs:
        gap = scores[q, j].item() - scores[q, q].item()
        value += weight * math.log1p(math.exp(gap)) / len(pairs)
        slope = weight / (1 + math.exp(-gap)) / len(pairs)
        gradient[q, j] += slope
        gradient[q, q] -= slope
    return value, gradient


@pytest.mark.parametrize("seed", CASES)
def test_nll_and_its_gradient(seed: int) -> None:
    scores, negative, _ = random_case(seed)
    value, gradient = loop_nll(scores, negative)
    loss = nll(scores, negative)
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(scores.grad, gradient, atol=1e-9)


@pytest.mark.parametrize("seed", CASES)
def test_ranknet_as_released_and_its_gradient(seed: int) -> None:
    scores, negative, _ = random_case(seed)
    value, gradient = loop_pairs(scores, [tuple(p) for p in negative.nonzero().tolist()], 1.0)
    loss = ranknet(scores, negative)
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(scores.grad, gradient, atol=1e-9)


@pytest.mark.parametrize("seed", CASES)
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_star_as_published_and_its_gradient(seed: int, alpha: float) -> None:
    scores, negative, own = random_case(seed)
    static, static_gradient = loop_pairs(scores, [tuple(p) for p in (negative & own).nonzero().tolist()], 1.0)
    other, other_gradient = loop_pairs(scores, [tuple(p) for p in (negative & ~own).nonzero().tolist()], alpha)
    loss = star(scores, negative, own, alpha)
    loss.backward()
    assert loss.item() == pytest.approx(static + other, abs=1e-9)
    np.testing.assert_allclose(scores.grad, static_gradient + other_gradient, atol=1e-9)


def test_by_hand() -> None:
    """Two queries, one hard negative each: slots p0 p1 n0 n1. Query 1 also counts p0 as relevant, so p0 is masked for it.

    Query 0: positive 2; negatives p1 1, n0 2, n1 0.  Query 1: positive 0; negatives n0 0, n1 log 3.
    NLL: q0 -log(e^2 / (e^2 + e + e^2 + 1)), q1 -log(1 / (1 + 1 + 3)) = log 5.
    RankNet pairs: q0 log(1 + e^-1), log 2, log(1 + e^-2); q1 log 2, log(1 + 3) = log 4; five pairs.
    Own pairs: q0 n0 log 2, q1 n1 log 4. Others: log(1 + e^-1), log(1 + e^-2), log 2.
    """
    scores = torch.tensor([[2.0, 1.0, 2.0, 0.0], [9.0, 0.0, 0.0, math.log(3)]], dtype=torch.float64)
    negative = torch.tensor([[False, True, True, True], [False, False, True, True]])
    own = torch.tensor([[False, False, True, False], [False, False, False, True]])
    e = math.e
    assert float(nll(scores, negative)) == pytest.approx((math.log((2 * e**2 + e + 1) / e**2) + math.log(5)) / 2)
    easy = [math.log(1 + 1 / e), math.log(1 + e**-2), math.log(2)]
    assert float(ranknet(scores, negative)) == pytest.approx((sum(easy) + math.log(2) + math.log(4)) / 5)
    assert float(star(scores, negative, own, 0.5)) == pytest.approx((math.log(2) + math.log(4)) / 2 + 0.5 * sum(easy) / 3)


def test_large_scores_stay_finite() -> None:
    """Unnormalised vectors of norm 27 give scores of hundreds (ANCE's LayerNorm head)."""
    scores = torch.tensor([[-700.0, 0.0, 700.0], [0.0, -700.0, 700.0]], requires_grad=True)
    negative = ~torch.eye(2, 3).bool()
    loss = ranknet(scores, negative) + nll(scores, negative)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()
