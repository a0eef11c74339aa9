"""`retemper why` in a toy project: every part of a difference against figures worked out by a formula and a plain loop."""

import itertools
import json
import random
import statistics
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scipy import stats

from flows.explaining.runs import Configuration, Measured, Refused
from flows.explaining.sides import Factor
from flows.explaining.why import Work, _trained, split, text
from tasks.core.errors import UserError

QUERIES = 0.0095  # what twenty queries add to the mean: 0 to 19 thousandths


def run_twice(project: Any, change: Callable[[], object]) -> None:
    """Two commits that were run, and a change between them."""
    project.call("run")
    project.commit()
    change()
    project.call("run")
    project.commit()


def dev_score(texts: list[float], lr: float, bonus: float, *, seed: int = 0) -> float:
    """What the toy's model scores on dev."""
    mean = sum(texts) / len(texts)
    return mean * (1 + bonus) + 1000 * lr * mean + seed % 7000 / 1e6 + QUERIES


def reference_values(worth: Callable[[frozenset[str]], float], names: list[str]) -> dict[str, float]:
    """Shapley values as the mean over all orders of what each name adds."""
    gains: dict[str, list[float]] = {name: [] for name in names}
    for order in itertools.permutations(names):
        for place, name in enumerate(order):
            gains[name].append(worth(frozenset(order[: place + 1])) - worth(frozenset(order[:place])))
    return {name: sum(values) / len(values) for name, values in gains.items()}


@pytest.mark.heavy
def test_a_difference_is_split_over_what_made_it(project: Any, set_round: Callable[..., None], set_bonus: Callable[[float], None]) -> None:
    """Data, a learning rate, and code at once, with two other seeds."""
    run_twice(project, lambda: (project.add(*[0.9] * 10), set_round(lr=3e-5), set_bonus(0.25)))
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run")
    assert (
        "HEAD~1 -> HEAD: factors: data, parameters, code; seeds: 3; runs: 25 (1 more known); trainings: 24 at most; by recorded times: "
        in out
    )
    assert not (project.folder / ".retemper/why/tree").exists(), "a look leaves no tree"
    answer = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "2", "--json")[0])
    old, new = [0.5] * 10, [0.5] * 10 + [0.9] * 10
    parts = {}
    for seed in (1000, 2000):

        def worth(coalition: frozenset[str], seed: int = seed) -> float:
            texts, lr = new if "data" in coalition else old, 3e-5 if "parameters" in coalition else 1e-5
            return dev_score(texts, lr, 0.25 if "code" in coalition else 0, seed=seed)

        parts[seed] = reference_values(worth, ["data", "parameters", "code"])
    rows = {row["factor"]: row for row in answer["rows"]}
    for name, first in parts[1000].items():
        assert rows[name]["contribution"] == pytest.approx((first + parts[2000][name]) / 2, abs=1e-12)
    assert list(rows) == [*parts[1000], "seed"]
    assert answer["difference"] == pytest.approx(dev_score(new, 3e-5, 0.25) - dev_score(old, 1e-5, 0), abs=1e-12)
    assert sum(row["contribution"] for row in answer["rows"]) == pytest.approx(answer["difference"], abs=1e-15)


def test_data_and_code_each_have_their_part(project: Any, set_bonus: Callable[[float], None]) -> None:
    """The old data is only in the cache: its source has grown."""
    assert "HEAD: its commit has no dvc.lock" in project.call("why", "HEAD", "HEAD", status=2)[1]
    run_twice(project, lambda: (project.add(*[0.9] * 10), set_bonus(0.25)))
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run", "--seeds", "1")
    assert "HEAD~1 -> HEAD: factors: data, code; seeds: 1; runs: 3 (1 more known); trainings: 2 at most; by recorded times: " in out
    assert not (project.folder / ".retemper/why/values").exists()
    answer = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "1", "--json")[0])
    old, new = [0.5] * 10, [0.5] * 10 + [0.9] * 10

    def worth(coalition: frozenset[str]) -> float:
        return dev_score(new if "data" in coalition else old, 1e-5, 0.25 if "code" in coalition else 0)

    assert {row["factor"]: row["contribution"] for row in answer["rows"]} == pytest.approx(
        reference_values(worth, ["data", "code"]), abs=1e-12
    )
    assert answer["old_value"] == pytest.approx(worth(frozenset()), abs=1e-12)
    assert answer["new_value"] == pytest.approx(worth(frozenset({"data", "code"})), abs=1e-12)
    assert sum(row["contribution"] for row in answer["rows"]) == pytest.approx(answer["difference"], abs=1e-15)
    assert answer["rows"][1]["differs"] == ["train"]
    out, _ = project.call("why", "HEAD~1", "HEAD", "--seeds", "1")
    assert "runs: 0 (4 more known); trainings: 0 at most" in out
    total = next(line.split() for line in out.splitlines() if line.startswith("total"))
    assert total == ["total", f"{answer['difference']:+.4f}", f"{answer['old_value']:.4f}", "->", f"{answer['new_value']:.4f}"]
    for revision, message in (
        ("nowhere", "revision nowhere: not found in git, expected a commit, branch, tag or experiment"),
        ("champion/7", "champion/7: no such champion; there is none yet"),
        ("HEAD:b", "HEAD:b: its dvc.lock has no metrics of b, expected a model that its run measured"),
    ):
        assert message in project.call("why", "HEAD~1", revision, status=2)[1]
    err = project.call("why", "HEAD~1", "HEAD", "--split", "data", status=2)[1]
    assert "--split data: found no batches of the inbox that HEAD has and HEAD~1 lacks" in err
    (project.folder / ".dvc/cache/files").rename(project.folder / ".dvc/cache/away")
    err = project.call("why", "HEAD~1:a", "HEAD:a", status=2)[1]
    assert "HEAD~1:a: its data (sha256 " in err
    assert ") is neither at beir:" in err
    project.git("rm", "--quiet", "--cached", "data/source.json")
    project.git("-c", "user.name=toy", "-c", "user.email=toy@example.com", "commit", "--quiet", "-m", "no record of the data")
    err = project.call("why", "HEAD~1:a", "HEAD:a", status=2)[1]
    assert "HEAD:a: its commit has no record of its data (data/source.json), so it cannot be trained again; commit that file" in err


def test_bm25_is_taken_only_where_it_is_named(project: Any) -> None:
    """It is the best of both revisions here."""
    graph = json.loads((project.folder / "dvc.yaml").read_text())
    command = 'mkdir -p data/metrics && echo \'{"dev": {"nDCG@10": 0.99}}\' > data/metrics/bm25.json'
    graph["stages"]["evaluate_bm25"] = {"cmd": command, "deps": ["data/corpus"], "metrics": ["data/metrics/bm25.json"]}
    (project.folder / "dvc.yaml").write_text(json.dumps(graph))
    run_twice(project, lambda: project.add(*[0.9] * 10))
    out, _ = project.call("why", "HEAD~1", "HEAD", "--dry-run", "--seeds", "1")
    notes = [line for line in out.splitlines() if "BM25" in line]
    assert [line.partition(":")[0] for line in notes] == ["HEAD~1", "HEAD"] and notes[1].endswith("for BM25, name HEAD:bm25")
    assert json.loads(project.call("why", "HEAD~1", "HEAD", "--dry-run", "--seeds", "1", "--json")[0])["notes"] == notes
    answer = json.loads(project.call("why", "HEAD~1", "HEAD", "--seeds", "1", "--json")[0])
    assert (answer["model"], answer["notes"]) == ("a", notes)


def test_a_coalition_without_a_training_is_counted_by_its_own_side() -> None:
    """BM25 as the newer model: its params.yaml has no round of the older one, whose run has no stage evaluate_bm25."""
    plan: Any = SimpleNamespace(
        factors=[Factor("rounds", sections=("rounds",)), Factor("model", model=True)],
        old=SimpleNamespace(evaluation="evaluate@a"),
        new=SimpleNamespace(evaluation="evaluate_bm25"),
        configuration=lambda coalition: Configuration("c", {}, {}, "bm25" if "model" in coalition else "a"),
    )
    assert _trained(plan, frozenset({"rounds"})) == "evaluate@a"
    assert _trained(plan, frozenset({"rounds", "model"})) == "evaluate_bm25"


def test_the_rest_is_the_seed_and_the_interval_its_noise() -> None:
    """Two factors, three repetitions beside the seeds as they are; the parts add up to the difference of these, exactly."""
    draw = random.Random(0)
    groups = {frozenset({name}): (name, [f"{name} differs"]) for name in ("data", "code")}
    coalitions = [frozenset(coalition) for coalition in ((), ("data",), ("code",), ("data", "code"))]
    values = {(coalition, repetition): Fraction(draw.uniform(0, 1)) for coalition in coalitions for repetition in range(4)}
    none, first, second, both = coalitions
    ends = {place: value for place, value in values.items() if place[1] or place[0] in (none, both)}
    data, code, seed = split(groups, ends, 3)
    each = [float(values[first, r] - values[none, r] + values[both, r] - values[second, r]) / 2 for r in (1, 2, 3)]
    assert data.contribution == pytest.approx(statistics.mean(each))
    low, high = stats.t.interval(0.95, 2, statistics.mean(each), stats.sem(each))
    assert (data.low, data.high) == (pytest.approx(low), pytest.approx(high))
    mean = statistics.mean(float(values[both, r] - values[none, r]) for r in (1, 2, 3))
    assert seed.contribution == pytest.approx(float(values[both, 0] - values[none, 0]) - mean)
    assert data.contribution + code.contribution + seed.contribution == pytest.approx(float(values[both, 0] - values[none, 0]), abs=1e-15)
    lucky = ends | {(both, 0): ends[both, 0] + 1}
    assert split(groups, lucky, 3)[:2] == (data, code), "a side that was chosen for its luck gives none of it to the factors"
    assert split(groups, lucky, 3)[2].contribution == pytest.approx(seed.contribution + 1)
    (alone,) = split({frozenset({"data"}): ("data", [])}, values, 1)
    assert (alone.contribution, alone.low) == (float(values[first, 0] - values[none, 0]), None)


class Sides:
    """A plan between two sides of three factors; a configuration's model is named after what is new in it."""

    def __init__(self) -> None:
        self.factors = [Factor("data", data=True), Factor("parameters"), Factor("code", code=True)]
        self.old, self.new = (SimpleNamespace(name=name, model="a", recorded={}) for name in ("old", "new"))
        self.names = frozenset({"data", "parameters", "code"})
        self.yardstick = self.configuration(self.names)

    def configuration(self, new: frozenset[str], repetition: int = 0) -> Configuration:
        return Configuration(f"seed {repetition}", {}, {}, " ".join(sorted(new)))

    def is_direct(self, new: frozenset[str]) -> bool:
        return "data" in new


class Bench:
    """Where parameters and code must be of one side, as a check or as a run says."""

    def __init__(self, *, says: str, apart: Callable[[str], bool]) -> None:
        self.says, self.apart, self.measurements = says, apart, list[str]()

    def refusals(self, configurations: dict[str, Configuration]) -> dict[str, str]:
        return {
            name: "rounds.a.new: unknown key"
            for name, configuration in configurations.items()
            if self.says == "check" and self.apart(configuration.model)
        }

    def known(self, *_: object) -> None:
        return None

    def measured(self, configuration: Configuration, _: Configuration, label: str) -> Measured:
        if self.says == "run" and self.apart(configuration.model):
            raise Refused("rounds.a.new: unknown key")
        self.measurements.append(label)
        data, code = "data" in configuration.model, "code" in configuration.model
        figure = 2.0 * data + 1.0 * code + 4.0 * (data and code)
        return Measured(figure, {"q": figure}, {})


@pytest.mark.parametrize("refused_by", ["check", "run"])
def test_what_cannot_be_apart_is_one_factor(refused_by: str) -> None:
    bench, lines = Bench(says=refused_by, apart=lambda model: ("parameters" in model) != ("code" in model)), list[str]()
    work = Work(cast(Any, Sides()), cast(Any, bench), "nDCG@10", seeds=1, say=lines.append)
    work.refuse_invalid()
    explanation = work.explain()
    assert lines == [
        "parameters of one side cannot be combined with code of the other: rounds.a.new: unknown key; they count as one factor"
    ]
    data, merged = explanation.rows
    assert (data.factor, merged.factor) == ("data", "parameters + code")
    assert data.contribution + merged.contribution == explanation.difference == 7.0
    assert (data.contribution, merged.contribution) == (4.0, 3.0), "half each of what only both do"
    assert "parameters of one side cannot be combined with code of the other" in text(explanation)
    assert "new: parameters + code, seeds as they are" in bench.measurements


@pytest.mark.parametrize("refused_by", ["check", "run"])
def test_only_the_two_sides_are_trained_with_the_seeds_as_they_are(refused_by: str) -> None:
    bench = Bench(says=refused_by, apart=lambda model: ("parameters" in model) != ("code" in model))
    work = Work(cast(Any, Sides()), cast(Any, bench), "nDCG@10", seeds=2, say=lambda _: None)
    work.refuse_invalid()
    explanation = work.explain()
    assert [row.factor for row in explanation.rows] == ["data", "parameters + code", "seed"]
    labels = [label.rpartition(", ")[2] for label in bench.measurements]
    assert {label: labels[-10:].count(label) for label in labels} == {"seeds as they are": 2, "seed 1 of 2": 4, "seed 2 of 2": 4}


def test_a_side_that_is_refused_is_an_error() -> None:
    work = Work(cast(Any, Sides()), cast(Any, Bench(says="check", apart=lambda model: not model)), "nDCG@10", seeds=1, say=lambda _: None)
    with pytest.raises(UserError, match=r"old: cannot be measured: rounds\.a\.new: unknown key"):
        work.refuse_invalid()
