"""Pooling against a plain loop over the tokens of each text, with padding on either side."""

import numpy as np
import pytest
import torch

from tasks.core.models.folder import POOLINGS
from tasks.core.models.hidden_states.pooling import pool, token_positions

LENGTHS = [1, 4, 7, 2]
LOOP = {
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "mean": lambda rows: sum(rows) / len(rows),
    "max": lambda rows: np.array([max(column) for column in zip(*rows, strict=True)]),
    "mean_sqrt_len": lambda rows: sum(rows) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: sum(n * row for n, row in enumerate(rows, 1)) / sum(range(1, len(rows) + 1)),
}


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("kind", POOLINGS.values())
def test_a_plain_loop_gives_the_same_vectors(kind: str, side: str) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_BLH = torch.randn(len(LENGTHS), 10, 5, generator=generator)
    mask_BL = torch.zeros(len(LENGTHS), 10, dtype=torch.int64)
    expected = []
    for number, length in enumerate(LENGTHS):
        first = {"left": 10 - length, "right": 0, "both": 2}[side]
        mask_BL[number, first : first + length] = 1
        assert token_positions(mask_BL)[number, first : first + length].tolist() == list(range(length))
        expected.append(LOOP[kind](list(hidden_BLH[number, first : first + length].double().numpy())))
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        vectors = pool(hidden_BLH.to(dtype), mask_BL, kind)
        assert vectors.dtype == torch.float32
        np.testing.assert_allclose(vectors, np.array(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("kind", POOLINGS.values())
def test_a_prompt_is_left_out(kind: str, side: str) -> None:
    """Of a text that is no longer than the prompt, the last token is kept. Weights still count the prompt's tokens."""
    hidden_BLH = torch.randn(len(LENGTHS), 10, 5, generator=torch.Generator().manual_seed(0))
    mask_BL = torch.zeros(len(LENGTHS), 10, dtype=torch.int64)
    expected = []
    for number, length in enumerate(LENGTHS):
        first = {"left": 10 - length, "right": 0, "both": 2}[side]
        mask_BL[number, first : first + length] = 1
        rows = list(hidden_BLH[number, first : first + length].double().numpy())
        left_out = min(2, length - 1)
        numbers = range(left_out + 1, length + 1)
        weighted = sum(n * rows[n - 1] for n in numbers) / sum(numbers)
        expected.append(weighted if kind == "weightedmean" else LOOP[kind](rows[left_out:]))
    np.testing.assert_allclose(pool(hidden_BLH, mask_BL, kind, 2), np.array(expected), rtol=1e-6, atol=1e-6)


def test_several_poolings_are_joined_in_their_order() -> None:
    hidden_BLH, mask_BL = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    joined = pool(hidden_BLH, mask_BL, "mean+cls+max")
    assert torch.equal(joined, torch.cat([pool(hidden_BLH, mask_BL, kind) for kind in ("mean", "cls", "max")], dim=1))
    joined = pool(hidden_BLH, mask_BL, "mean+cls", 1)
    assert torch.equal(joined, torch.cat([pool(hidden_BLH, mask_BL, kind, 1) for kind in ("mean", "cls")], dim=1))


def test_every_pooling_is_tried() -> None:
    assert set(LOOP) == set(POOLINGS.values())
