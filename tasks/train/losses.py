"""Losses of a round: pure functions of scores. One formula, one function, one source.

B queries, S candidate slots, H hard negatives per query. Slot i < B is the positive of query i; the slots after that are hard
negatives, query by query. `negative_BS` says which slots are negatives of which query (known positives excluded),
`own_BS` which slots are the query's own hard negatives. A loss over no pairs is 0, with gradient 0.

Distillation losses use only a query's own group: `group_BG` [B, 1 + H] has the positive first, then the query's own hard
negatives; `valid_BG` says which of them count.

With `weight_B`, a mean over queries (or pairs) is weighted: the sum of w l over the sum of w, each pair weighing as its query does. For
click weights 1 / p that is the self-normalized inverse propensity estimate of a batch (Swaminathan and Joachims, NIPS 2015).
"""

import torch
from torch.nn import functional as F

Weights = torch.Tensor | None  # [B] of the queries; None: all weigh the same


def mean_over(values_BX: torch.Tensor, mask_BX: torch.Tensor, weight_B: Weights) -> torch.Tensor:
    """Mean of the values where the mask is set; 0 if it is set nowhere."""
    if weight_B is None:
        return (values_BX * mask_BX).sum() / mask_BX.sum().clamp(min=1)
    weights_BX = mask_BX * weight_B.view(-1, *[1] * (mask_BX.dim() - 1))
    total = weights_BX.sum()
    return (values_BX * weights_BX).sum() / torch.where(total > 0, total, 1)


def nll(scores_BS: torch.Tensor, negative_BS: torch.Tensor, weight_B: Weights = None) -> torch.Tensor:
    """Softmax cross-entropy of the positive against the query's negatives, mean over queries.

    -log( e^s+ / (e^s+ + sum over negatives of e^s-) ): ANCE (arXiv:2007.00808), section 2; Tevatron's loss.
    """
    target_B = torch.arange(len(scores_BS), device=scores_BS.device)
    candidate_BS = negative_BS | F.one_hot(target_B, scores_BS.shape[1]).bool()
    logits_BS = scores_BS.masked_fill(~candidate_BS, -torch.inf)
    if weight_B is None:
        return F.cross_entropy(logits_BS, target_B)
    return (F.cross_entropy(logits_BS, target_B, reduction="none") * weight_B).sum() / weight_B.sum()


def hardest_negatives(scores_BS: torch.Tensor, negative_BS: torch.Tensor) -> torch.Tensor:
    """A mask [B, S] of each query's highest-scoring negative (of equals, the first). The row of a query without negatives is empty.

    NCE Neg, ANCE (arXiv:2007.00808), section 5: only the hardest negative of the batch is in the loss.
    """
    best_B = scores_BS.detach().masked_fill(~negative_BS, -torch.inf).argmax(1)
    return negative_BS & F.one_hot(best_B, scores_BS.shape[1]).bool()


def ranknet(scores_BS: torch.Tensor, negative_BS: torch.Tensor, weight_B: Weights = None) -> torch.Tensor:
    """STAR as released (DRhard, model.py): mean over all pairs of the batch, hard and in-batch, of log(1 + e^(s- - s+)).

    The loss of a pair is RankNet's: STAR (arXiv:2104.08051), Eq. 14.

    It is also the pairwise softmax that ANCE trains with (ANCE, models.py): a softmax over one positive and one negative,
    -log( e^s+ / (e^s+ + e^s-) ), is log(1 + e^(s- - s+)); the mean is over all pairs.
    """
    return mean_over(F.softplus(scores_BS - scores_BS.diagonal().unsqueeze(1)), negative_BS, weight_B)


def star(scores_BS: torch.Tensor, negative_BS: torch.Tensor, own_BS: torch.Tensor, alpha: float, weight_B: Weights = None) -> torch.Tensor:
    """STAR as published (arXiv:2104.08051), Eq. 13: L_s + alpha L_r; each is the mean over its pairs.

    L_s (Eq. 7) pairs the positive with the query's own static hard negatives, L_r (Eq. 5) with the other queries' documents,
    which represent random ones (section 6.1.3). Eq. 5 and 7 are sums, here means: up to a factor, the released loss,
    one mean over all pairs, has alpha = 2B - 2 for B queries with one hard negative each.
    """
    return ranknet(scores_BS, negative_BS & own_BS, weight_B) + alpha * ranknet(scores_BS, negative_BS & ~own_BS, weight_B)


def hinge(scores_BS: torch.Tensor, negative_BS: torch.Tensor, margin: float, weight_B: Weights = None) -> torch.Tensor:
    """Mean over all pairs of max(0, margin - (s+ - s-)): ANCE (arXiv:2007.00808), section 2, beside the NLL."""
    pairs_BS = F.relu(margin - scores_BS.diagonal().unsqueeze(1) + scores_BS)
    return mean_over(pairs_BS, negative_BS, weight_B)


def margin_mse(group_BG: torch.Tensor, teacher_BG: torch.Tensor, valid_BG: torch.Tensor, weight_B: Weights = None) -> torch.Tensor:
    """Mean over all (positive, own negative) pairs of ((s+ - s-) - (t+ - t-))^2: Hofstätter et al., arXiv:2010.02666, Margin-MSE."""
    pairs_BH = valid_BG[:, :1] & valid_BG[:, 1:]
    margins_BH = (group_BG[:, :1] - group_BG[:, 1:]) - (teacher_BG[:, :1] - teacher_BG[:, 1:])
    squares_BH = margins_BH.masked_fill(~pairs_BH, 0.0).square()
    return mean_over(squares_BH, pairs_BH, weight_B)


def kl(group_BG: torch.Tensor, teacher_BG: torch.Tensor, valid_BG: torch.Tensor, weight_B: Weights = None) -> torch.Tensor:
    """KL(softmax(teacher) || softmax(student)) over each query's own group, mean over the queries whose group has a pair.

    Tevatron's distillation loss (`batchmean`), SimLM. Both are divided by their temperatures beforehand; there is no factor T^2.
    """
    row_B = valid_BG[:, 0] & valid_BG[:, 1:].any(1)
    least = torch.finfo(group_BG.dtype).min  # not -inf: the logarithm of an excluded slot and its gradient stay finite
    student_BG = group_BG.masked_fill(~valid_BG, least).log_softmax(1)
    target_BG = teacher_BG.masked_fill(~valid_BG, least).log_softmax(1)
    terms_BG = (target_BG.exp() * (target_BG - student_BG)).masked_fill(~valid_BG, 0.0)
    return mean_over(terms_BG.sum(1), row_B, weight_B)
