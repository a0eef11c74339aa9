"""The best model against its rival, as it is drawn."""

import numpy as np
import pytest

from tasks.report.duel import difference_chart


@pytest.mark.parametrize("names", [("x", "y"), ("query", "end"), ("low", "high"), ("same", "same"), ("first", "second")])
def test_systems_may_be_named_like_a_field_of_the_chart(names: tuple[str, str]) -> None:
    spec = difference_chart(["q0", "q1"], np.array([0.25, 0.75]), np.array([0.5, 0.5]), names)
    rows = spec["data"]["values"]
    assert [(row["x"], row["end"], row["y"], row["query"]) for row in rows] == [(0, 1, 0.25, "q1"), (1, 2, -0.25, "q0")]
    tooltips = [(tip["title"], [row[tip["field"]] for row in rows]) for tip in spec["encoding"]["tooltip"]]
    assert tooltips == [("query", ["q1", "q0"]), (names[0], ["0.7500", "0.2500"]), (names[1], ["0.5000", "0.5000"])]
