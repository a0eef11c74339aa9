"""Pool the outputs of a text's tokens into one vector; texts may be padded on either side. B texts, L tokens, H hidden width."""

import torch


def token_positions(mask_BL: torch.Tensor) -> torch.Tensor:
    """The place of each token in its text, from 0, [B, L], with padding on either side; the numbers of padding mean nothing."""
    return (mask_BL.cumsum(1) - 1).clamp(min=0)


def pooled_column(mask_BL: torch.Tensor, kind: str) -> torch.Tensor:
    """The column of each text's first token (kind cls) or last one (kind last), [B], with padding on either side."""
    place_L = torch.arange(mask_BL.shape[1], device=mask_BL.device)
    return (mask_BL * (place_L + 1 if kind == "last" else len(place_L) - place_L)).argmax(1)


def pool(hidden_BLH: torch.Tensor, mask_BL: torch.Tensor, kind: str, skipped: int = 0) -> torch.Tensor:
    """Pool outputs [B, L, H] into vectors [B, H], float32; several poolings, joined by +, are concatenated, [B, n H].

    cls | last: the first or last token's. mean | mean_sqrt_len: the sum, divided by the number of tokens or its root. max: the largest
    value of each dimension. weightedmean: the mean, token n of a text weighted by n (SGPT, arXiv:2202.08904). The first `skipped` tokens of
    each text, its prompt's, are excluded, as sentence-transformers does with include_prompt false; of a text without any others, the last
    is kept.
    """
    if "+" in kind:
        return torch.cat([pool(hidden_BLH, mask_BL, part, skipped) for part in kind.split("+")], dim=-1)
    number_BL = token_positions(mask_BL) + 1 if skipped or kind == "weightedmean" else mask_BL  # of a token in its text
    if skipped:
        mask_BL = mask_BL * (number_BL > (mask_BL.sum(1, keepdim=True) - 1).clamp(max=skipped)).to(mask_BL.dtype)
    if kind in ("cls", "last"):
        return hidden_BLH[torch.arange(len(mask_BL), device=mask_BL.device), pooled_column(mask_BL, kind)].float()
    if kind == "max":
        return hidden_BLH.float().masked_fill(mask_BL.unsqueeze(-1) == 0, -torch.inf).max(1).values
    weights_BL1 = (mask_BL * number_BL if kind == "weightedmean" else mask_BL).unsqueeze(-1).float()
    total_B1 = weights_BL1.sum(1)
    return (hidden_BLH.float() * weights_BL1).sum(1) / (total_B1.sqrt() if kind == "mean_sqrt_len" else total_B1)
