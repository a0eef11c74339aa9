"""What pages say."""

import pytest

from tasks.core.charts.page import confidence


@pytest.mark.parametrize(("alpha", "level"), [(0.05, "95"), (0.025, "97.5"), (0.005, "99.5"), (0.001, "99.9"), (1e-6, "99.9999")])
def test_levels_of_intervals_are_not_rounded(alpha: float, level: str) -> None:
    assert confidence(alpha) == f"{level}%"
