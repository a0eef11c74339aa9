"""Losses and metrics of a pre-training: pure functions of tensors. One formula, one function, one source.

N texts per step, S spans per text (4 T in the paper), H width, M masked tokens, V vocabulary.
"""

import torch
from torch.nn import functional as F


def group_contrastive(text_NH: torch.Tensor, spans_NSH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Group-wise contrastive loss of every text, [N]: COSTA (arXiv:2204.10641), Eq. 8 without its outer sum; sim is the dot product.

    Anchors are the texts. -1/S sum over own spans p of log( exp(z_i z_p / tau) / sum over j != i of exp(z_i z_j / tau) ), where
    j ranges over all N (S + 1) vectors but z_i: the other texts, their spans, and the text's own spans.
    """
    scores_NJ = text_NH @ torch.cat([text_NH, spans_NSH.flatten(0, 1)]).T / temperature
    itself_NJ = torch.eye(len(text_NH), scores_NJ.shape[1], dtype=torch.bool, device=scores_NJ.device)
    own_NS = torch.einsum("nh,nsh->ns", text_NH, spans_NSH) / temperature
    return scores_NJ.masked_fill(itself_NJ, -torch.inf).logsumexp(1) - own_NS.mean(1)


def inverse_cloze(queries_NH: torch.Tensor, passages_NH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Inverse cloze loss, [N]: -log softmax of a sentence's own passage among the step's (Lee et al., arXiv:1906.00300, section 5)."""
    target_N = torch.arange(len(queries_NH), device=queries_NH.device)
    return F.cross_entropy(queries_NH @ passages_NH.T / temperature, target_N, reduction="none")


def masked_tokens(logits_MV: torch.Tensor, tokens_M: torch.Tensor) -> torch.Tensor:
    """MLM loss of every masked token, [M]: COSTA (arXiv:2204.10641), Eq. 9 without its sum."""
    return F.cross_entropy(logits_MV, tokens_M, reduction="none")


def nearest_span_accuracy(text_NH: torch.Tensor, spans_NSH: torch.Tensor) -> torch.Tensor:
    """Fraction of texts whose nearest span, of all N S, is one of their own: how well texts are distinguished. A scalar."""
    nearest_N = (text_NH @ spans_NSH.flatten(0, 1).T).argmax(1)
    own_N = torch.arange(len(text_NH), device=text_NH.device)
    return (nearest_N // spans_NSH.shape[1] == own_N).float().mean()


def alignment(text_NH: torch.Tensor, own_NSH: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of texts and their own spans, as unit vectors, in [0, 4] (Wang & Isola, arXiv:2005.10242, Eq. 4, alpha 2)."""
    return (F.normalize(text_NH, dim=-1).unsqueeze(1) - F.normalize(own_NSH, dim=-1)).square().sum(-1).mean()


def uniformity(text_NH: torch.Tensor) -> torch.Tensor:
    """Log of the mean over pairs of texts, as unit vectors, of exp(-2 distance^2) (Wang & Isola, Eq. 5). Lower is better; 0: all equal."""
    unit_NH = F.normalize(text_NH, dim=-1)
    squared_NN = (2 - 2 * unit_NH @ unit_NH.T).clamp(min=0)
    row_P, column_P = torch.triu_indices(len(unit_NH), len(unit_NH), offset=1, device=unit_NH.device)
    return squared_NN[row_P, column_P].mul(-2).exp().mean().log()
