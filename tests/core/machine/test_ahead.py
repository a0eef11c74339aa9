"""Work is started one ahead of what is waited for, and none is lost."""

import numpy as np
import pytest
import torch

from tasks.core.machine.ahead import map_ahead
from tasks.core.machine.devices import Coming


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_each_is_started_before_the_one_before_it_is_waited_for(count: int) -> None:
    events = list[str]()

    def start(number: int) -> Coming:
        events.append(f"start {number}")
        return Coming(torch.full((2,), number))

    for number, pending in enumerate(map_ahead(start, iter(range(count)))):
        events.append(f"wait {number}")
        assert np.array_equal(pending.arrays()[0], [number, number])
    assert events == {
        0: [],
        1: ["start 0", "wait 0"],
        2: ["start 0", "start 1", "wait 0", "wait 1"],
        5: [
            "start 0", "start 1", "wait 0", "start 2", "wait 1", "start 3", "wait 2", "start 4", "wait 3", "wait 4"
        ],
    }[count]  # fmt: skip
