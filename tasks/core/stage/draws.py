"""Random draws as pure functions of their key: data order, sampling, and dropout never depend on a worker's state."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
# What a training draws from its seed, each by a stream of its own, so that no two draws coincide.
ORDER, SAMPLING, DROPOUT, SUBSET, HELD_OUT, PASSAGES, ADAPTERS, REPLAYED = range(1, 9)
# What a pre-training draws besides ORDER; it uses none of the others.
SPANS, CLOZE, MASKS, CHUNK_DROPOUT, WEIGHTS, HEAD, PROJECTOR, DECODED, DECODER = 2, 3, 4, 5, 11, 12, 13, 14, 15


def draw_seed(*key: int) -> int:
    """One 63-bit seed from (seed, step, ...): a splitmix64 chain, so nearby keys give unrelated draws."""
    state = 0
    for part in key:
        state = (state ^ (part & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


@lru_cache(maxsize=2)  # drawn once per epoch, not once per step: a corpus may have millions
def epoch_order(total: int, seed: int, epoch: int) -> Ints:
    """The order of 0..total-1 in an epoch, [total], read-only."""
    order: Ints = np.random.default_rng(draw_seed(seed, ORDER, epoch)).permutation(total)
    order.flags.writeable = False
    return order


def batch_places(total: int, size: int, seed: int, step: int) -> Ints:
    """The numbers of 0..total-1 in the batch of step `step`, [size]: each epoch is a new permutation.

    The last batch of an epoch is filled from the next one, so every batch is full.
    """
    epoch, place = np.divmod(np.arange(step * size, (step + 1) * size), total)
    return np.concatenate([epoch_order(total, seed, e)[place[epoch == e]] for e in np.unique(epoch).tolist()])
