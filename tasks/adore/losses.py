"""Pairwise losses over ranked lists: pure functions of scores. One formula, one function, one source.

B queries, L positions of a list, P positives of pairs. Position l is rank l + 1; shorter lists end with invalid positions.
"""

import torch
from torch.nn import functional as F


def gains(places: int, metric: str, cut: int, device: torch.device) -> torch.Tensor:
    """What a relevant document at each rank adds to the metric, [L]: 1/r (MRR) or 1/log2(1 + r) (DCG) up to rank `cut`, then 0."""
    ranks_L = torch.arange(1, places + 1, device=device, dtype=torch.float32)
    gains_L = 1 / ranks_L if metric == "mrr" else 1 / torch.log2(1 + ranks_L)
    return gains_L * (ranks_L <= cut)


def ideal(positives_B: torch.Tensor, cut: int) -> torch.Tensor:
    """The largest DCG at `cut` that queries with that many known positives can have, [B]."""
    best_C = gains(max(1, min(cut, int(positives_B.max()))), "ndcg", cut, torch.device("cpu")).cumsum(0)  # CUDA's sum is not reproducible
    return best_C.to(positives_B.device)[positives_B.clamp(1, len(best_C)) - 1]


def pairwise(
    scores_BL: torch.Tensor,
    positive_BL: torch.Tensor,
    valid_BL: torch.Tensor,
    gains_L: torch.Tensor | None = None,
    ideal_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean over queries of: mean over (positive i, negative j) of |gain_i - gain_j| / ideal * log(1 + e^(s_j - s_i)).

    Without gains every pair weighs 1: RankNet (LTRe (arXiv:2010.10469), Eq. 1; STAR (arXiv:2104.08051), Eq. 14). With them:
    LambdaRank (LTRe, Eq. 2) and LambdaLoss (ADORE, Eq. 15).
    For MRR the papers' code (DRhard, adore/train.py) uses |1/r_i - 1/r_j| whatever other
    positives rank above, and so do we. Ranks are the list's own, not re-sorted by `scores_BL`. A query without a pair adds 0.
    """
    negative_BL = valid_BL & ~positive_BL
    query_P, place_P = (positive_BL & valid_BL).nonzero(as_tuple=True)
    losses_PL = F.softplus(scores_BL[query_P] - scores_BL[query_P, place_P].unsqueeze(1))
    if gains_L is not None:
        losses_PL = losses_PL * (gains_L[place_P].unsqueeze(1) - gains_L).abs()
    if ideal_B is not None:
        losses_PL = losses_PL / ideal_B[query_P].unsqueeze(1)
    pairs_B = positive_BL.logical_and(valid_BL).sum(1) * negative_BL.sum(1)
    return (losses_PL * negative_BL[query_P] / pairs_B.clamp(min=1)[query_P].unsqueeze(1)).sum() / len(scores_BL)
