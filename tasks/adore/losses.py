"""Pairwise losses over ranked lists: pure functions of scores. One formula, one function, one source.

B queries, L positions in a list, P positives in all lists. Position l is rank l + 1; shorter lists end with invalid positions.
"""

import torch
from torch.nn import functional as F

from tasks.core.machine.devices import to_device


def rank_gains(places: int, metric: str, cut: int) -> torch.Tensor:
    """The gain of a document of grade 1 at each rank, [L]: 1/r (MRR) or 1/log2(1 + r) (DCG) up to rank `cut`, then 0."""
    ranks_L = torch.arange(1, places + 1, dtype=torch.float32)
    gains_L = 1 / ranks_L if metric == "mrr" else 1 / torch.log2(1 + ranks_L)
    return gains_L * (ranks_L <= cut)


def ideal_dcg(grades_BK: torch.Tensor, cut: int) -> torch.Tensor:
    """The ideal DCG at `cut` of each query, float64 [B], from the grades of its known positives (0: padding). 1 if it would be 0.

    2^grade is finite in float64 up to a grade of 1,023, in float32 up to 127.
    """
    best_BK = grades_BK.double().sort(1, descending=True).values
    dcg_BK = (best_BK.exp2() - 1) * rank_gains(best_BK.shape[1], "ndcg", cut)
    ideal_B = dcg_BK.cumsum(1)[:, -1]
    return torch.where(ideal_B > 0, ideal_B, 1.0)


def pairwise(
    scores_BL: torch.Tensor,
    grades_BL: torch.Tensor,
    valid_BL: torch.Tensor,
    gains_L: torch.Tensor | None = None,
    ideal_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean over queries of: mean over pairs (i, j) with grade_i > grade_j of |gain_i - gain_j| / ideal * log(1 + e^(s_j - s_i)).

    Without gains every pair weighs 1: RankNet (LTRe (arXiv:2010.10469), Eq. 1, and step 7 of Algorithm 1: pairs of unequal labels;
    STAR (arXiv:2104.08051), Eq. 14). With gains: LambdaRank (LTRe, Eq. 2) and LambdaLoss (ADORE, Eq. 15). With `ideal_B` the weight is
    also multiplied by |2^grade_i - 2^grade_j|, so it is the change of nDCG (Burges, From RankNet to LambdaRank to LambdaMART,
    MSR-TR-2010-82). For MRR the papers' code (DRhard, adore/train.py) uses |1/r_i - 1/r_j| whether or not other positives rank above, and
    so do we. Ranks are positions in the list, which is not re-sorted by `scores_BL`. A query without a pair adds 0.
    All arguments but the scores are on the CPU: only the weights of the pairs are sent to a GPU.
    """
    query_P, place_P = ((grades_BL > 0) & valid_BL).nonzero(as_tuple=True)
    weight_PL = pair_weights(query_P, place_P, grades_BL, valid_BL, gains_L, ideal_B)
    query_P, place_P, weight_PL = (to_device(tensor, scores_BL.device) for tensor in (query_P, place_P, weight_PL))
    losses_PL = F.softplus(scores_BL[query_P] - scores_BL[query_P, place_P].unsqueeze(1))
    return (losses_PL * weight_PL).sum() / len(scores_BL)


def pair_weights(
    query_P: torch.Tensor,
    place_P: torch.Tensor,
    grades_BL: torch.Tensor,
    valid_BL: torch.Tensor,
    gains_L: torch.Tensor | None,
    ideal_B: torch.Tensor | None,
) -> torch.Tensor:
    """The weight of each pair of a positive and a document of its list, [P, L]: its share of the query's mean, times its gain."""
    grade_P = grades_BL[query_P, place_P]
    counted_PL = valid_BL[query_P] & (grade_P.unsqueeze(1) > grades_BL[query_P])
    pairs_B = torch.zeros(len(grades_BL), dtype=torch.int64).index_add(0, query_P, counted_PL.sum(1))
    weight_PL = counted_PL / pairs_B.clamp(min=1)[query_P].unsqueeze(1)
    if gains_L is not None:
        weight_PL = weight_PL * (gains_L[place_P].unsqueeze(1) - gains_L).abs()
    if ideal_B is not None:
        power_BL = grades_BL.double().exp2()
        share_PL = (power_BL[query_P, place_P].unsqueeze(1) - power_BL[query_P]).abs() / ideal_B[query_P].unsqueeze(1)
        weight_PL = weight_PL * share_PL.float()
    return weight_PL
