"""Texts without padding: the rows of a batch, one after another, for encoders built like BERT. T tokens of B rows."""

from typing import Any

import numpy as np
import torch

from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tokens.folder import Tokens

FIRST_POSITION = {"bert": 0, "roberta": None, "xlm-roberta": None}  # of a row's first token; None: the pad id + 1 (fairseq)


def first_position(config: Any) -> int | None:
    """The position id of a row's first token; None for an architecture that is not built like BERT."""
    if config.model_type not in FIRST_POSITION:
        return None
    first = FIRST_POSITION[config.model_type]
    return int(config.pad_token_id) + 1 if first is None else first


def round_up(tokens: int) -> int:
    """`tokens` rounded up, so that many batches have products of the same sizes: cuBLAS takes time to choose how to compute a new size."""
    step = 64 if tokens < 4096 else 512
    return -(-tokens // step) * step


def with_filler_rows(lengths_B: Ints, size: int) -> Ints:
    """`lengths_B`, then the lengths of spare rows, none longer than the longest, so that all have `size` tokens together."""
    spare, longest = size - int(lengths_B.sum()), int(lengths_B.max())
    return np.concatenate([lengths_B, np.full(spare // longest, longest), np.full(int(spare % longest > 0), spare % longest)])


def first_places(lengths_B: Ints, size: int) -> Ints:
    """Where the rows begin that have these lengths; padded with 0 to `size` numbers."""
    return np.pad(lengths_B.cumsum() - lengths_B, (0, size - len(lengths_B)))


def positions(ids_T: Ints, lengths_B: Ints, first: int) -> Ints:
    """Position ids [T] of rows of token ids, one after another, each from `first` on.

    In fairseq's models, whose `first` is the pad id + 1, a pad token in a text has the pad id for its position and is not counted.
    """
    positions_T = concat_ranges(first, lengths_B)
    padding_T = ids_T == first - 1
    if not first or not padding_T.any():
        return positions_T
    padding_before_T = padding_T.cumsum() - padding_T
    starts_B = lengths_B.cumsum() - lengths_B
    positions_T -= padding_before_T - np.repeat(padding_before_T[starts_B], lengths_B)
    return np.where(padding_T, first - 1, positions_T)


def ids_and_positions(tokens: Tokens, rows: Ints, lengths_B: Ints, first: int, size: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of `rows`, one after another, and their position ids (`positions`), int64 [T]; T is `size` if that is more."""
    total = int(lengths_B.sum())
    ids_T = np.full(max(size, total), tokens.pad, dtype=np.int64)
    ids_T[:total] = np.concatenate([tokens.flat[s:e] for s, e in zip(tokens.offsets[rows], tokens.offsets[rows + 1], strict=True)])
    positions_T = np.full(len(ids_T), first, dtype=np.int64)
    positions_T[:total] = positions(ids_T[:total], lengths_B, first)
    return torch.from_numpy(ids_T), torch.from_numpy(positions_T)
