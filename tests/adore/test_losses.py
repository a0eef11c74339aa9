"""RankNet, LambdaLoss for MRR and nDCG, and their gradients, against plain loops in float64."""

import itertools
import math
import random

import pytest
import torch

from tasks.adore.losses import ideal_dcg, pairwise, rank_gains

Case = tuple[list[list[float]], list[list[int]], list[list[int]]]  # scores, grades, those of all known positives; lists of own lengths
CPU = torch.device("cpu")


def draw(seed: int) -> Case:
    """Lists of 1 to 12 documents with no, one or several positives; few different scores, so that some tie; some far apart."""
    rng = random.Random(seed)
    scores, labels, known = [], [], []
    for _ in range(rng.randint(1, 6)):
        length = rng.randint(1, 12)
        spread = rng.choice([1.0, 1.0, 60.0])
        scores.append([rng.choice([rng.uniform(-1, 1), 0.5, -0.25]) * spread for _ in range(length)])
        most = rng.choice([1, 1, 3])  # the largest grade
        labels.append([rng.randint(1, most) * (rng.random() < rng.choice([0.0, 0.2, 0.6, 1.0])) for _ in range(length)])
        grades = [grade for grade in labels[-1] if grade] + [rng.randint(1, most) for _ in range(rng.randint(0, 2))]
        known.append(grades or [1])
    return scores, labels, known


def swap_weight(i: int, j: int, labels: list[int], metric: str | None, cut: int, known: list[int]) -> float:
    """How much the metric changes when ranks i + 1 and j + 1 are swapped, as the released code counts it; nDCG with gains 2^grade - 1."""
    if metric is None:
        return 1.0

    def gain(place: int) -> float:
        rank = place + 1
        return 0.0 if rank > cut else 1 / rank if metric == "mrr" else 1 / math.log2(1 + rank)

    if metric == "mrr":
        return abs(gain(i) - gain(j))
    best = sum((2**grade - 1) / math.log2(1 + rank) for rank, grade in enumerate(sorted(known, reverse=True)[:cut], 1))
    return abs(gain(i) - gain(j)) * abs(2 ** labels[i] - 2 ** labels[j]) / best


def reference_loss(case: Case, metric: str | None, cut: int) -> tuple[float, list[list[float]]]:
    """Loss and its derivative for every score: sums over every ordered pair, one at a time."""
    total, derivatives = 0.0, []
    for scores, labels, known in zip(*case, strict=True):
        slope = [0.0] * len(scores)
        pairs = [(i, j) for i, j in itertools.product(range(len(scores)), repeat=2) if labels[i] > labels[j]]
        for i, j in pairs:
            share = swap_weight(i, j, labels, metric, cut, known) / len(pairs) / len(case[0])
            x = scores[j] - scores[i]
            total += share * (max(x, 0) + math.log1p(math.exp(-abs(x))))
            sigmoid = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
            slope[j] += share * sigmoid
            slope[i] -= share * sigmoid
        derivatives.append(slope)
    return total, derivatives


def loss_of(case: Case, metric: str | None, cut: int) -> tuple[torch.Tensor, torch.Tensor]:
    scores, labels, known = case
    length = max(map(len, scores)) + 1  # one place that no list fills
    scores_BL = torch.full((len(scores), length), 7.0)  # scores past a list's end must not matter
    grades_BL, valid_BL = torch.full((len(scores), length), 9), torch.zeros(len(scores), length, dtype=torch.bool)
    for b, (row, marks) in enumerate(zip(scores, labels, strict=True)):
        scores_BL[b, : len(row)], valid_BL[b, : len(row)] = torch.tensor(row), True
        grades_BL[b, : len(row)] = torch.tensor(marks)
    scores_BL.requires_grad_()
    gains_L = rank_gains(length, metric, cut) if metric else None
    most = max(map(len, known))
    grades_BK = torch.tensor([[*grades, *[0] * (most - len(grades))] for grades in known])
    ideal_B = ideal_dcg(grades_BK, cut) if metric == "ndcg" else None
    return pairwise(scores_BL, grades_BL, valid_BL, gains_L, ideal_B), scores_BL


@pytest.mark.parametrize("metric", [None, "mrr", "ndcg"])
def test_equals_plain_loops_and_so_does_every_gradient(metric: str | None) -> None:
    several = none = ties = graded = 0
    for seed in range(300):
        case, cut = draw(seed), random.Random(seed).choice([1, 3, 10, 200])
        loss, scores_BL = loss_of(case, metric, cut)
        expected, slopes = reference_loss(case, metric, cut)
        assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6), seed
        loss.backward()
        assert scores_BL.grad is not None
        for b, slope in enumerate(slopes):
            assert scores_BL.grad[b, : len(slope)].tolist() == pytest.approx(slope, rel=1e-4, abs=1e-7), (seed, b)
            assert not scores_BL.grad[b, len(slope) :].any()
        several += any(sum(map(bool, marks)) > 1 for marks in case[1])
        none += any(not sum(marks) for marks in case[1])
        ties += any(len(set(row)) < len(row) for row in case[0])
        graded += any(len({*marks} - {0}) > 1 for marks in case[1])
    assert min(several, none, ties, graded) > 50  # the cases are what they should be


@pytest.mark.parametrize("grade", [3, 126, 1000])
def test_grades_up_to_the_largest_that_prepare_takes(grade: int) -> None:
    """2^128 is infinite in float32: the loss was NaN, and 0 where only the ideal DCG was infinite."""
    case = ([[0.5, 0.1, -0.3, 0.2]], [[grade, 0, grade - 1, 0]], [[grade] * 12])
    loss, scores_BL = loss_of(case, "ndcg", 10)
    expected, (slope,) = reference_loss(case, "ndcg", 10)
    assert loss.item() == pytest.approx(expected, rel=1e-5) and expected > 0.001
    loss.backward()
    assert scores_BL.grad is not None and scores_BL.grad[0, :4].tolist() == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_a_case_by_hand() -> None:
    """Ranks 1 to 3, the third relevant, MRR: pairs weigh 2/3 and 1/6; the loss is their mean."""
    loss, _ = loss_of(([[2.0, 1.0, 0.0]], [[0, 0, 1]], [[1]]), "mrr", 3)
    assert loss.item() == pytest.approx((2 / 3 * math.log(1 + math.e**2) + 1 / 6 * math.log(1 + math.e)) / 2)
    loss, _ = loss_of(([[2.0, 1.0, 0.0]], [[0, 0, 1]], [[1]]), "mrr", 1)  # beyond rank 1 nothing counts
    assert loss.item() == pytest.approx((1 * math.log(1 + math.e**2) + 0) / 2)


def test_a_batch_without_a_pair_is_zero_and_still_has_a_gradient() -> None:
    loss, scores_BL = loss_of(([[1.0, 0.5], [2.0]], [[0, 0], [1]], [[1], [1]]), "mrr", 10)
    assert loss.item() == 0
    loss.backward()
    assert scores_BL.grad is not None and not scores_BL.grad.any()


def test_large_scores_do_not_overflow() -> None:
    """Vectors under ANCE's LayerNorm head have inner products of several hundred."""
    loss, scores_BL = loss_of(([[900.0, -900.0]], [[0, 1]], [[1]]), None, 10)
    assert loss.item() == pytest.approx(1800)
    loss.backward()
    assert scores_BL.grad is not None and scores_BL.grad[0, :2].tolist() == [1.0, -1.0]
