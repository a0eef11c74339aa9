"""Which parameters people are shown."""

from typing import Any

import pytest

from tasks.core.params.effective import effective


@pytest.mark.parametrize(
    ("section", "shown"),
    [
        ({"lr": 1e-5, "epochs": 2}, {"lr": 1e-5, "epochs": 2}),
        ({"epochs": 2, "steps": None}, {"epochs": 2, "steps": None}),
        ({"epochs": 2, "steps": 4, "lr": 1e-5}, {"steps": 4, "lr": 1e-5}),
        ({"epochs": 2, "steps": 0}, {"steps": 0}),
    ],
)
def test_epochs_that_steps_override_are_left_out(section: dict[str, Any], shown: dict[str, Any]) -> None:
    assert effective(section) == shown
