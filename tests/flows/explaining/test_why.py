"""`retemper why` in a toy project: every part of a difference against figures worked out by a formula and a plain loop."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

QUERIES = 0.0095  # what twenty queries add to the mean: 0 to 19 thousandths


def value(texts: list[float], lr: float, bonus: float, seed: int = 0) -> float:
    """What the toy's model scores on dev."""
    mean = sum(texts) / len(texts)
    return mean * (1 + bonus) + 1000 * lr * mean + seed % 7000 / 1e6 + QUERIES


def by_orders(worth: Callable[[frozenset[str]], float], names: list[str]) -> dict[str, float]:
    """Shapley values as the mean over all orders of what each name adds."""
    gains: dict[str, list[float]] = {name: [] for name in names}
    for order in itertools.permutations(names):
        for place, name in enumerate(order):
            gains[name].append(worth(frozenset(order[: place + 1])) - worth(frozenset(order[:place])))
    return {name: sum(found) / len(found) for name, found in gains.items()}


@pytest.fixture
def changed(project: Any, set_round: Callable[..., None], set_bonus: Callable[[float], None]) -> Any:
    """Two commits that were run, which differ in data, a learning rate, and code."""
    project.call("run")
    project.commit()
    project.add(*[0.9] * 10)
    set_round(lr=3e-5)
    set_bonus(0.25)
    project.call("run")
    project.commit()
    return project


def test_a_difference_is_split_over_what_made_it(changed: Any) -> None:
    project = changed
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run")
    assert "3 factors, 3 seeds: 24 runs" in out
    told = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "2", "--json")[0])
    old, new = [0.5] * 10, [0.5] * 10 + [0.9] * 10
    parts = {}
    for seed in (0, 1000):

        def worth(chosen: frozenset[str], seed: int = seed) -> float:
            texts, lr = new if "data" in chosen else old, 3e-5 if "parameters" in chosen else 1e-5
            return value(texts, lr, 0.25 if "code" in chosen else 0, seed)

        parts[seed] = by_orders(worth, ["data", "parameters", "code"])
    rows = {row["factor"]: row for row in told["rows"]}
    assert list(rows) == ["data", "parameters", "code", "seed"]
    for name in ("data", "parameters", "code"):
        assert rows[name]["contribution"] == pytest.approx((parts[0][name] + parts[1000][name]) / 2, abs=1e-12)
    assert told["old_value"] == pytest.approx(value(old, 1e-5, 0), abs=1e-12)
    assert told["new_value"] == pytest.approx(value(new, 3e-5, 0.25), abs=1e-12)
    assert sum(row["contribution"] for row in told["rows"]) == pytest.approx(told["difference"], abs=1e-15)
    assert rows["parameters"]["differs"] == ["rounds.a.lr: 1e-05 -> 3e-05"]
    assert rows["code"]["differs"] == ["train"]
    out, _ = project.call("why", "HEAD~1", "HEAD", "--seeds", "2", "--dry-run")
    assert "0 runs (16 more are known), at most 0 trainings" in out
