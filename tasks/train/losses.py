"""Losses of a round: pure functions of scores. One formula, one function, one source.

B queries, S candidate slots. Slot i < B is the positive of query i; the slots behind hold hard negatives, query by query.
`negative_BS` says which slots are negatives of which query (no known positive among them), `own_BS` which slots are the
query's own hard negatives.
"""

import torch
from torch.nn import functional as F


def nll(scores_BS: torch.Tensor, negative_BS: torch.Tensor) -> torch.Tensor:
    """Softmax cross-entropy of the positive against the query's negatives, mean over queries.

    -log( e^s+ / (e^s+ + sum over negatives of e^s-) ): ance-iclr.txt section 2, Tevatron's loss.
    """
    target_B = torch.arange(len(scores_BS), device=scores_BS.device)
    candidate_BS = negative_BS | F.one_hot(target_B, scores_BS.shape[1]).bool()
    return F.cross_entropy(scores_BS.masked_fill(~candidate_BS, -torch.inf), target_B)


def pair_losses(scores_BS: torch.Tensor) -> torch.Tensor:
    """RankNet of every (positive, candidate) pair, [B, S]: log(1 + e^(s- - s+)), star-adore.txt Eq. 14."""
    return F.softplus(scores_BS - scores_BS.diagonal().unsqueeze(1))


def ranknet(scores_BS: torch.Tensor, negative_BS: torch.Tensor) -> torch.Tensor:
    """STAR as released (DRhard, model.py): mean over all pairs of the batch, hard and in-batch alike. 0 where there is no pair."""
    return (pair_losses(scores_BS) * negative_BS).sum() / negative_BS.sum().clamp(min=1)


def star(scores_BS: torch.Tensor, negative_BS: torch.Tensor, own_BS: torch.Tensor, alpha: float) -> torch.Tensor:
    """STAR as written, star-adore.txt Eq. 13: L_s + alpha L_r; each is the mean over its pairs.

    L_s (Eq. 7) pairs the positive with the query's own static hard negatives, L_r (Eq. 5) with the other queries' documents,
    which stand for random ones (section 6.1.3).
    """
    return ranknet(scores_BS, negative_BS & own_BS) + alpha * ranknet(scores_BS, negative_BS & ~own_BS)
