"""`retemper why` in a toy project: every part of a difference against figures worked out by a formula and a plain loop."""

import itertools
import json
import random
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from scipy import stats

from flows.explaining.why import split

QUERIES = 0.0095  # what twenty queries add to the mean: 0 to 19 thousandths


def run_twice(project: Any, change: Callable[[], object]) -> None:
    """Two commits that were run, and a change between them."""
    project.call("run")
    project.commit()
    change()
    project.call("run")
    project.commit()


def value(texts: list[float], lr: float, bonus: float, *, seed: int = 0) -> float:
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


@pytest.mark.heavy
def test_a_difference_is_split_over_what_made_it(project: Any, set_round: Callable[..., None], set_bonus: Callable[[float], None]) -> None:
    """Data, a learning rate, and code at once, with two seeds."""
    run_twice(project, lambda: (project.add(*[0.9] * 10), set_round(lr=3e-5), set_bonus(0.25)))
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run")
    assert "HEAD~1 -> HEAD: 3 factors, 3 seeds: 23 runs (1 more are known), at most 22 trainings, about " in out
    told = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "2", "--json")[0])
    old, new = [0.5] * 10, [0.5] * 10 + [0.9] * 10
    parts = {}
    for seed in (0, 1000):

        def worth(chosen: frozenset[str], seed: int = seed) -> float:
            texts, lr = new if "data" in chosen else old, 3e-5 if "parameters" in chosen else 1e-5
            return value(texts, lr, 0.25 if "code" in chosen else 0, seed=seed)

        parts[seed] = by_orders(worth, ["data", "parameters", "code"])
    rows = {row["factor"]: row for row in told["rows"]}
    for name, first in parts[0].items():
        assert rows[name]["contribution"] == pytest.approx((first + parts[1000][name]) / 2, abs=1e-12)
    assert list(rows) == [*parts[0], "seed"]
    assert told["difference"] == pytest.approx(value(new, 3e-5, 0.25) - value(old, 1e-5, 0), abs=1e-12)
    assert sum(row["contribution"] for row in told["rows"]) == pytest.approx(told["difference"], abs=1e-15)


def test_data_and_code_each_have_their_part(project: Any, set_bonus: Callable[[float], None]) -> None:
    """The old data is only in the cache: its source has grown."""
    run_twice(project, lambda: (project.add(*[0.9] * 10), set_bonus(0.25)))
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run", "--seeds", "1")
    assert "HEAD~1 -> HEAD: 2 factors, 1 seeds: 3 runs (1 more are known), at most 2 trainings, about " in out
    assert not (project.folder / ".retemper/why/values").exists()
    told = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "1", "--json")[0])
    old, new = [0.5] * 10, [0.5] * 10 + [0.9] * 10

    def worth(chosen: frozenset[str]) -> float:
        return value(new if "data" in chosen else old, 1e-5, 0.25 if "code" in chosen else 0)

    assert {row["factor"]: row["contribution"] for row in told["rows"]} == pytest.approx(by_orders(worth, ["data", "code"]), abs=1e-12)
    assert told["old_value"] == pytest.approx(worth(frozenset()), abs=1e-12)
    assert told["new_value"] == pytest.approx(worth(frozenset({"data", "code"})), abs=1e-12)
    assert sum(row["contribution"] for row in told["rows"]) == pytest.approx(told["difference"], abs=1e-15)
    assert told["rows"][1]["differs"] == ["train"]
    out, _ = project.call("why", "HEAD~1", "HEAD", "--seeds", "1")
    assert "0 runs (4 more are known), at most 0 trainings" in out
    total = next(line.split() for line in out.splitlines() if line.startswith("total"))
    assert total == ["total", f"{told['difference']:+.4f}", f"{told['old_value']:.4f}", "->", f"{told['new_value']:.4f}"]


def test_the_rest_is_the_seed_and_the_interval_its_noise() -> None:
    """Two factors, three repetitions; the parts add up to the difference of the first one, exactly."""
    draw = random.Random(0)
    groups = {frozenset({name}): (name, [f"{name} differs"]) for name in ("data", "code")}
    coalitions = [frozenset(one) for one in ((), ("data",), ("code",), ("data", "code"))]
    values = {(one, repetition): Fraction(draw.uniform(0, 1)) for one in coalitions for repetition in range(3)}
    data, code, seed = split(groups, values, 3)
    none, first, second, both = coalitions
    each = [float(values[first, r] - values[none, r] + values[both, r] - values[second, r]) / 2 for r in range(3)]
    assert data.contribution == pytest.approx(statistics.mean(each))
    low, high = stats.t.interval(0.95, 2, statistics.mean(each), stats.sem(each))
    assert (data.low, data.high) == (pytest.approx(low), pytest.approx(high))
    mean = statistics.mean(float(values[both, r] - values[none, r]) for r in range(3))
    assert seed.contribution == pytest.approx(float(values[both, 0] - values[none, 0]) - mean)
    assert data.contribution + code.contribution + seed.contribution == pytest.approx(float(values[both, 0] - values[none, 0]), abs=1e-15)
    (alone,) = split({frozenset({"data"}): ("data", [])}, values, 1)
    assert (alone.contribution, alone.low) == (float(values[first, 0] - values[none, 0]), None)
