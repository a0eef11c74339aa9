"""What a sweep says at its end, over experiments written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from scipy import stats

from flows.experiments import choice, store, table
from flows.experiments.choice import Tried
from flows.experiments.grid import read_points
from flows.parameters.checks import check
from tasks.core.params.sections import read_yaml
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS
from tests.flows.experiments.test_compare import Project, random_scores

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = table.Layout(caption="", models=("m",), measures=("AP",))


def trial(key: str, value: Any, *, name: str = "", commit: str = "", **dev: float) -> Tried:
    """A run with `key` set to `value`, and each model's nDCG@10 on dev; without any, it is not stored."""
    sections: dict[str, Any] = {}
    node = sections
    for part in key.split(".")[:-1]:
        node = node.setdefault(part, {})
    node[key.rpartition(".")[2]] = value
    metrics = {model: {"dev": {"nDCG@10": score}, "test": {"nDCG@10": 1 - score}} for model, score in dev.items()}
    setting = (("setting", name),) if name else ((key.rpartition(".")[2], str(value)),)
    return Tried(setting, [f"{key}={value}"], [key], sections, store.Experiment("x", commit, "", "", {}, metrics) if dev else None)


def choose_lines(
    runs: Sequence[Tried], layout: table.Layout | None = None, targets: Sequence[str] = (), check: choice.Check = lambda _: None
) -> list[str]:
    return choice.choose(runs, layout, targets=targets, check=check)


@pytest.fixture(autouse=True)
def stub_significance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "project" not in request.fixturenames:
        monkeypatch.setattr(choice, "significance_note", lambda *_, **__: "(the test)")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    return project


def test_the_best_on_dev_with_its_command() -> None:
    runs = [trial("a.lr", value, bm25=0.9, m=dev) for value, dev in ((1e-5, 0.5), (1e-4, 0.75), (1e-3, 0.625))]
    assert choose_lines(runs) == [
        "best on dev by nDCG@10: lr=0.0001 with 0.7500 (m); next lr=0.001 with 0.6250 (m)",
        "(the test)",
        "to adopt it: retemper run --set a.lr=0.0001",
    ], "not bm25, which no point changes"


def test_repetitions_count_by_their_average() -> None:
    runs = [trial("a.lr", value, m=dev) for value, dev in ((1, 0.5), (1, 0.01), (1, 0.6), (2, 0.4), (2, 0.4))]
    assert choose_lines(runs)[0] == "best on dev by nDCG@10: lr=2 with 0.4000 (m, mean of 2 runs); next lr=1 with 0.3700 (m)"
    median = LAYOUT.model_copy(update={"average": "median"})
    assert choose_lines(runs, median)[0] == "best on dev by nDCG@10: lr=1 with 0.5000 (m, median of 3 runs); next lr=2 with 0.4000 (m)"


def test_what_a_run_did_not_reach_does_not_count() -> None:
    """One point has the working tree's parameters, so what was measured before is in its dvc.lock."""
    runs = [trial("a.lr", 1, m=0.5), trial("a.lr", 2, m=0.25, later=0.75)]
    assert choose_lines(runs, targets=["evaluate@m"])[0].startswith("best on dev by nDCG@10: lr=1 with 0.5000 (m)")
    assert choose_lines(runs)[0].startswith("best on dev by nDCG@10: lr=2 with 0.7500 (later)")
    assert choose_lines(runs, LAYOUT)[0].startswith("best on dev by nDCG@10: lr=1 with 0.5000 (m)"), "the table's models alone"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({1: 0.5, 2: 0.4}, "a.lr: the best value, 1, is the smallest tried; try smaller ones"),
        ({1e-5: 0.5, 1e-3: 0.6}, "a.lr: the best value, 0.001, is the largest tried; try larger ones"),
        ({1: 0.4, 2: 0.5, 3: 0.4}, None),
        ({1: 0.4, 2: 0.5, 3: None}, None),  # 3 has not run yet
        ({"x": 0.4, 2: 0.5}, None),
        ({False: 0.4, True: 0.5}, None),
        ({1: 0.5, 2: 0.4, 3: 0.5}, None),  # 3 is as good
        ({1: 0.4, 2: 0.5, None: 0.4}, "a.lr: the best value, 2, is the largest tried; try larger ones"),
    ],
)
def test_a_best_value_at_the_edge_of_the_grid(values: Mapping[Any, float | None], expected: str | None) -> None:
    lines = choose_lines([trial("a.lr", value, **({} if dev is None else {"m": dev})) for value, dev in values.items()])
    assert [line for line in lines if "tried" in line] == ([] if expected is None else [expected])
    seeds = choose_lines([trial("a.split_seed", value, **({} if dev is None else {"m": dev})) for value, dev in values.items()])
    assert not [line for line in seeds if "tried" in line], "larger seeds are no better"


@pytest.mark.parametrize(
    ("key", "values", "beyond"),
    [("bm25.b", (0.5, 1), False), ("bm25.b", (0.5, 1.0), False), ("bm25.b", (0, 0.5), True), ("bm25.k1", (1, 2.5), True)],
)
def test_no_edge_where_the_parameter_ends(key: str, values: tuple[float, float], beyond: bool) -> None:
    section, name = key.split(".")
    params = read_yaml(ROOT / "params.yaml")
    runs = [
        Tried(run.setting, run.assignments, run.keys, {**params, section: {**params[section], name: value}}, run.experiment)
        for run, value in ((trial(key, value, m=value / 10), value) for value in values)
    ]
    assert any("larger" in line for line in choose_lines(runs, check=check)) == beyond
    assert params == read_yaml(ROOT / "params.yaml")


def test_where_nothing_can_be_chosen() -> None:
    assert choose_lines([trial("a.lr", 1, m=0.5), trial("a.lr", 2, m=0.5)]) == ["best on dev by nDCG@10: none, all 2 settings have 0.5000"]
    assert choose_lines([trial("a.lr", 1, m=0.5), trial("a.lr", 1, m=0.4), trial("a.lr", 2)]) == []
    assert choose_lines([trial("report.metric", "AP", m=0.5), trial("report.metric", "RR@10", m=0.4)]) == []


def test_points_that_are_not_stored_are_told() -> None:
    assert choose_lines([trial("a.lr", 1, m=0.5), trial("a.lr", 2, m=0.4), trial("a.lr", 3)])[0].startswith(
        "best on dev by nDCG@10, of the points stored so far: lr=1 with"
    )


def test_the_command_is_quoted_and_lacks_what_repeats(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        'set: {text.separator: ": ", m.seed: 9}\npoints: {one: {m.window: [1, 2]}, two: {m.window: null}}\nrepeat: {m.seed: [1, 2]}\n'
    )
    runs = []
    for point, dev in zip(read_points(file, ["m.steps=4"]), (0.5, 0.6, 0.1, 0.2), strict=True):
        runs.append(point.tried({}, store.Experiment("", "", "", "", {}, {"m": {"dev": {"nDCG@10": dev}}})))
    assert [run.keys for run in runs] == [["m.window"]] * 4
    first, *_, last = choose_lines(runs)
    assert first == "best on dev by nDCG@10: one with 0.5500 (m, mean of 2 runs); next two with 0.1500 (m)"
    assert last == """to adopt it: retemper run --set 'text.separator=": "' --set 'm.window=[1, 2]' --set m.steps=4"""


def test_the_best_two_are_tested_query_by_query(project: Project) -> None:
    """Repetitions are averaged query by query."""
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [pa.table([["q00"], ["d0"], [1]], schema=QRELS)])
    values = [random_scores(seed, better) for seed, better in ((1, 0.2), (2, 0.2), (3, 0.17), (4, 0.0))]
    commits = [project.commit({"star": (1e-5, str(number), scores)}) for number, scores in enumerate(values)]
    experiments = [
        Tried(
            ((("lr", name)),), [f"a.lr={name}"], [], {"report": {"metric": "RR@10"}}, store.read("x", commit, "", cache=Path(".dvc/cache"))
        )
        for name, commit in zip(("1", "1", "2", "3"), commits, strict=True)
    ]
    means = [(values[0][query] + values[1][query]) / 2 for query in values[0]]
    for runs, expected in ((experiments[:3], list(values[2].values())), ([*experiments[:2], experiments[3]], list(values[3].values()))):
        p = stats.ttest_rel(means, expected).pvalue
        word = "differ" if p <= 0.05 else "do not differ"
        assert choose_lines(runs)[1] == f"the best two {word} significantly on dev (p = {p:.2g}, 40 queries)"
    assert word == "differ"


def test_other_dev_queries_are_no_comparison(project: Project) -> None:
    values = [random_scores(1, 0.2), {query: value for query, value in random_scores(2).items() if query != "q00"}]
    commits = [project.commit({"star": (1e-5, str(number), scores)}) for number, scores in enumerate(values)]
    experiments = [
        Tried((("lr", commit),), [], [], {"report": {"metric": "RR@10"}}, store.read("x", commit, "", cache=Path(".dvc/cache")))
        for commit in commits
    ]
    assert choose_lines(experiments)[1] == "the best two were measured on different dev queries, so their figures cannot be compared"
