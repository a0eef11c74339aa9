"""Parts of the queries: whole blocks of the exact search, so that their size changes no bit of a result."""

import numpy as np
import pytest
import torch

from tasks.core.retrieval.exact import exact_search
from tasks.core.retrieval.parts import searchers, shared_size
from tasks.core.retrieval.ranked import QUERY_BLOCK
from tasks.core.stage.runtime import Runtime


def test_size_of_the_parts_that_several_workers_share() -> None:
    assert shared_size(16 * QUERY_BLOCK, 10**6, 1) == 16 * QUERY_BLOCK, "one worker: as ever"
    assert shared_size(16 * QUERY_BLOCK, 10**6, 8) == 16 * QUERY_BLOCK, "memory is bounded"
    assert shared_size(16 * QUERY_BLOCK, 30 * QUERY_BLOCK, 8) == 2 * QUERY_BLOCK
    assert shared_size(16 * QUERY_BLOCK, 30 * QUERY_BLOCK + 1, 5) == 4 * QUERY_BLOCK
    assert shared_size(16 * QUERY_BLOCK, 5, 8) == QUERY_BLOCK
    assert shared_size(100, 10**6, 8) == 100, "less than a block: long lists"


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_part_has_the_bits_of_the_whole(blocks: int) -> None:
    draw, device = np.random.default_rng(0), torch.device("cpu")
    asked, rows = draw.normal(size=(2 * QUERY_BLOCK + 77, 48)).astype(np.float32), draw.normal(size=(500, 48)).astype(np.float32)
    shards = [(0, rows[:230]), (230, rows[230:])]
    whole = exact_search(asked, shards, 10, device)
    size = blocks * QUERY_BLOCK
    parts = [exact_search(asked[first : first + size], shards, 10, device) for first in range(0, len(asked), size)]
    for place in (0, 1):
        assert np.concatenate([part[place] for part in parts]).tobytes() == whole[place].tobytes()


def test_one_process_searches_an_index_on_one_machine() -> None:
    assert searchers(Runtime(workers=4), indexed=True).workers == 1
    assert searchers(Runtime(workers=4), indexed=False).workers == 4
    assert searchers(Runtime(workers=4, engine="ray"), indexed=True).workers == 4
