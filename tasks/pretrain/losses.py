"""Losses and figures of a pre-training: pure functions of tensors. One formula, one function, one source.

N texts of a step, S spans a text (4 T in the paper), H width, M masked tokens, V vocabulary.
"""

import torch
from torch.nn import functional as F


def group_contrastive(text_NH: torch.Tensor, spans_NSH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Group-wise contrastive loss of every text, [N]: costa.txt Eq. 8 without its outer sum; sim is the dot product.

    Anchors are the texts. -1/S sum over own spans p of log( exp(z_i z_p / tau) / sum over j != i of exp(z_i z_j / tau) ), where
    j goes through all N (S + 1) vectors: the other texts, their spans and the own spans.
    """
    scores_NJ = text_NH @ torch.cat([text_NH, spans_NSH.flatten(0, 1)]).T / temperature
    itself_NJ = torch.eye(len(text_NH), scores_NJ.shape[1], dtype=torch.bool, device=scores_NJ.device)
    own_NS = torch.einsum("nh,nsh->ns", text_NH, spans_NSH) / temperature
    return scores_NJ.masked_fill(itself_NJ, -torch.inf).logsumexp(1) - own_NS.mean(1)


def inverse_cloze(queries_NH: torch.Tensor, passages_NH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Inverse cloze task, [N]: -log softmax of a sentence's own passage among the step's passages (Lee et al. 2019, section 5)."""
    target_N = torch.arange(len(queries_NH), device=queries_NH.device)
    return F.cross_entropy(queries_NH @ passages_NH.T / temperature, target_N, reduction="none")


def masked_tokens(logits_MV: torch.Tensor, tokens_M: torch.Tensor) -> torch.Tensor:
    """MLM loss of every masked token, [M]: costa.txt Eq. 9 without its sum."""
    return F.cross_entropy(logits_MV, tokens_M, reduction="none")


def first_own(text_NH: torch.Tensor, spans_NSH: torch.Tensor) -> torch.Tensor:
    """Share of texts whose nearest of all N S spans is one of their own, a scalar: whether texts can be told apart."""
    nearest_N = (text_NH @ spans_NSH.flatten(0, 1).T).argmax(1)
    own_N = torch.arange(len(text_NH), device=text_NH.device)
    return (nearest_N // spans_NSH.shape[1] == own_N).float().mean()


def alignment(text_NH: torch.Tensor, own_NSH: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of a text and its own spans, lengths normalised, a scalar in [0, 4] (Wang & Isola 2020, Eq. 4, alpha 2)."""
    return (F.normalize(text_NH, dim=-1).unsqueeze(1) - F.normalize(own_NSH, dim=-1)).square().sum(-1).mean()


def uniformity(text_NH: torch.Tensor) -> torch.Tensor:
    """log mean over pairs of texts of exp(-2 distance^2), lengths normalised: 0 if all collapsed, -4 at best (Wang & Isola, Eq. 5)."""
    unit_NH = F.normalize(text_NH, dim=-1)
    squared_NN = (2 - 2 * unit_NH @ unit_NH.T).clamp(min=0)
    pairs = torch.triu(torch.ones_like(squared_NN, dtype=torch.bool), diagonal=1)
    return squared_NN[pairs].mul(-2).exp().mean().log()
