"""What a sweep prints: rows, means, deviations and curves, worked out by hand; and that COSTA's own sweeps are sound."""

import copy
import json
import shutil
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flows.experiments import table
from flows.experiments.grid import read_layout, read_points, read_targets
from flows.experiments.store import Experiment
from flows.parameters import edit
from flows.parameters.checks import check
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = table.Layout(caption="Few queries", models=("m",), measures=("RR@10", "R@9"), references=("bm25",), curve="rounds.m.n")


def experiment(**dev: float) -> Experiment:
    models = {"m": {"dev": {"RR@10": dev["rr"]} | ({"R@9": dev["r"]} if "r" in dev else {})}, "bm25": {"dev": {"RR@10": 0.25, "R@9": 0.5}}}
    return Experiment("", "", "", "", {}, models)


FOUND = [
    ((("objective", "costa"), ("n", "500")), experiment(rr=0.1, r=0.5)),
    ((("objective", "costa"), ("n", "500")), experiment(rr=0.3, r=0.5)),
    ((("objective", "costa"), ("n", "1000")), experiment(rr=0.4)),
    ((("objective", "mlm"), ("n", "500")), experiment(rr=0.15, r=0.25)),
]


def test_a_row_for_each_setting_with_mean_and_deviation() -> None:
    cells = table.collect(FOUND, LAYOUT, "dev")
    header, body = table.rows(cells, LAYOUT)
    assert header == ["objective", "n", "runs", "RR@10", "R@9"]
    assert body == [
        ["costa", "500", "2", "0.2000 ± 0.1414 ", "0.5000 ± 0.0000 "],  # sample deviation of 0.1 and 0.3: sqrt(0.02)
        ["costa", "1000", "1", "0.4000*", ""],
        ["mlm", "500", "1", "0.1500 ", "0.2500 "],
        ["bm25", "", "", "0.2500 ", "0.5000*"],  # of equals the simpler one
    ]
    assert table.as_text(cells, LAYOUT, "dev").splitlines()[:2] == [
        "Few queries, dev",
        "objective     n  runs             RR@10               R@9",
    ]
    named = table.collect([((("setting", "base"),), experiment(rr=0.5))], LAYOUT.model_copy(update={"references": ()}), "dev")
    assert table.rows(named, LAYOUT) == (["setting", "RR@10", "R@9"], [["base", "0.5000*", ""]])
    assert table.rows(table.collect(FOUND, LAYOUT, "test"), LAYOUT)[1][0][2:] == ["", ""], "no test figures, none shown"


def test_a_reference_is_beside_every_model() -> None:
    layout = LAYOUT.model_copy(update={"models": ("m", "other")})
    results = []
    for setting, run in FOUND:
        run.metrics["other"] = {"dev": {"RR@10": 0.2, "R@9": 0.75}}
        results.append((setting, run))
    header, body = table.rows(table.collect(results, layout, "dev"), layout)
    assert header[3:] == ["m RR@10", "m R@9", "other RR@10", "other R@9"]
    assert body[-1] == ["bm25", "", "", "0.2500 ", "0.5000*", "0.2500*", "0.5000 "]


def test_the_fewest_mistakes_are_the_best() -> None:
    layout = table.Layout(caption="", models=("m",), measures=("Hole@10",))
    experiments = [
        ((("setting", str(value)),), Experiment("", "", "", "", {}, {"m": {"dev": {"Hole@10": value}}})) for value in (0.25, 0.125, 0.5)
    ]
    assert table.rows(table.collect(experiments, layout, "dev"), layout)[1] == [
        ["0.25", "0.2500 "],
        ["0.125", "0.1250*"],
        ["0.5", "0.5000 "],
    ]


def test_a_median_is_not_moved_by_one_seed_that_fails() -> None:
    experiments = [
        ((("objective", name), ("n", "1")), experiment(rr=value)) for name, value in [("a", 0.5), ("a", 0.01), ("a", 0.6), ("b", 0.4)]
    ]
    for average, first, second in (("median", "0.5000 (0.0100 to 0.6000)*", "0.4000 "), ("mean", "0.3700 ± 0.3158 ", "0.4000*")):
        layout = LAYOUT.model_copy(update={"measures": ("RR@10",), "average": average, "references": ()})
        assert [line[-1] for line in table.rows(table.collect(experiments, layout, "dev"), layout)[1]] == [first, second]


def test_the_figure_has_a_line_for_each_setting_and_a_level_for_bm25(tmp_path: Path, charts_of: Callable[..., Any]) -> None:
    cells = table.collect(FOUND, LAYOUT, "dev")
    table.write({"dev": cells}, LAYOUT, tmp_path / "new" / "page.html", notes=["lr=<1"])
    page = (tmp_path / "new" / "page.html").read_text()
    assert '<p class="note">lr=&lt;1</p>' in page
    assert '<p class="note">dev; *: the best of its column</p>' in page
    charts = charts_of(page)
    assert len(charts) == 2, "one for each measure"
    points: dict[str, list[Any]] = {}
    for row in charts[0][1]["data"]["values"]:
        points.setdefault(row["name"], []).append((row["x"], row["y"]))
    assert points == {"costa": [("500", 0.2), ("1000", 0.4)], "mlm": [("500", 0.15)], "bm25": [("500", 0.25), ("1000", 0.25)]}
    first = next(row for row in charts[0][1]["data"]["values"] if row["name"] == "costa")
    assert (first["high"] - first["low"]) / 2 == pytest.approx(0.1414, abs=1e-4)
    assert first["note"] == "0.2000 ± 0.1414"


def parse_value(value: str) -> Any:
    """The value of an assignment: JSON, or a bare word."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def apply_assignments(sections: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """What edit.apply makes of sections, without the slow reading and writing of YAML."""
    edited = copy.deepcopy(sections)
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        *parents, last = key.split(".")
        reduce(dict.__getitem__, parents, edited)[last] = parse_value(value)
    return edited


@pytest.mark.parametrize("recipe", ["costa-ablation", "from_scratch"])
def test_recipes_stand_in_for_sections_that_name_other_rounds(recipe: str, full_params: dict[str, Any]) -> None:
    check(full_params)
    check(full_params | read_yaml(ROOT / f"docs/recipes/{recipe}.yaml"))


def test_the_sweep_of_start_shares_is_sound(full_params: dict[str, Any]) -> None:
    file = ROOT / "docs/recipes/cocktail/share.yaml"
    points, layout = read_points(file, []), read_layout(file)
    assert layout is not None and list(read_targets(file)) == ["evaluate@warmup"]
    shares = []
    for point in points:
        sections = apply_assignments(full_params, point.assignments)
        check(sections)
        shares.append(sections["rounds"]["warmup"].pop("start_share"))
    assert shares == [0, 0.1, 0.25, 0.5, 0.75]


def test_the_sweep_of_few_queries_is_sound(full_params: dict[str, Any]) -> None:
    file = ROOT / "docs/recipes/low_resource/curve.yaml"
    points, layout = read_points(file, []), read_layout(file)
    assert layout is not None
    table.check_layout(layout, full_params, list(read_targets(file)), where=str(file))
    draws = []
    for point in points:
        sections = apply_assignments(full_params, point.assignments)
        check(sections)
        draws.append((sections["rounds"]["warmup"]["train_share"], sections["rounds"]["warmup"]["split_seed"]))
    assert sorted(draws) == [(share, seed) for share in (0.05, 0.1, 0.25, 0.5, 1) for seed in (0, 1, 2)]


@pytest.mark.parametrize("file", sorted((ROOT / "docs/recipes/costa-ablation").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_sweeps_of_costa_are_sound(file: Path, tmp_path: Path, full_params: dict[str, Any], checkout: Path) -> None:
    """Every point passes a run's checks and changes what the file says, nothing else; targets make the table's models."""
    points, layout, sweep = read_points(file, ["pretrain.costa.steps=2"]), read_layout(file), read_yaml(file)
    counts = {
        "table4": 5,
        "table5": 4,
        "table6": 3,
        "table6_finetuning": 3,
        "table7": 4,
        "figure4": 36,
        "objectives": 12,
        "contrastive_input": 2,
        "reductions": 3,
        "pooling": 4,
    }
    assert len(points) == counts[file.stem]
    assert layout is not None
    assert {f"evaluate@{model}" for model in layout.models} <= set(read_targets(file))
    lists = sweep.get("grid", {}) | sweep.get("repeat", {})
    varied = {*lists, *(key for settings in sweep.get("points", {}).values() for key in settings)}
    assert all(key.startswith(("pretrain.costa.", "rounds.costa_bm25.")) for key in varied), "what the table's model is made by"
    point_values, remainders, sections = [], [], full_params
    for point in points:
        params = apply_assignments(sections, point.assignments)
        check(params)
        assert params["pretrain"]["costa"]["steps"] == 2
        assert set(layout.measures) <= set(params["evaluate"]["measures"])
        assert params["rounds"]["costa_bm25"]["init"] == ("base" if point.name.startswith("encoder_as_it_came") else "costa")
        named = next((settings for name, settings in sweep.get("points", {}).items() if ("setting", name) in point.setting), {})
        assert set(point.own) == {*named, *lists}
        values = {}
        for key in varied:
            *parents, last = key.split(".")
            section = reduce(dict.__getitem__, parents, params)
            assert key not in named or section[last] == named[key]
            assert key not in lists or section[last] in lists[key]
            values[key] = section.pop(last, None)
        point_values.append(values)
        remainders.append(params)
        if file.stem == "table4":
            assert values["pretrain.costa.spans"] * len(values["pretrain.costa.granularities"] or range(4)) == 12
    assert all(first != second for first, second in combinations(point_values, 2)), "no two points are one"
    assert all(params == remainders[0] for params in remainders), "nothing else is changed"
    assert len({point.setting for point in points}) * (3 if file.stem in ("figure4", "objectives") else 1) == len(points)
    shutil.copy(checkout / "params.yaml", tmp_path)
    edit.apply(points[-1].assignments, tmp_path / "params.yaml", check)
    assert read_yaml(tmp_path / "params.yaml") == apply_assignments(read_yaml(checkout / "params.yaml"), points[-1].assignments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {a: [1]}\nsections: [x]", "sections: found"),
        ("grid: {a: [1]}\nsections: nowhere.yaml", "nowhere.yaml: not found"),
        ("grid: {a: [1]}\nrepeat: {b: []}", "no points"),
        ("grid: {a: [1]}\nrepeat: 3", "repeat: expected a mapping"),
        ("grid: {a: [1]}\ntargets: report", "expected a list of stages"),
        ("grid: {a: [1]}\ntable: {caption: x}", "table.models: missing"),
        ("grid: {a: [1]}\ntable: {caption: x, models: [m], measures: [AP], curve: b}", "table.curve: found 'b', expected a key of grid: a"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        print(read_points(file), read_layout(file), read_targets(file))


@pytest.mark.parametrize(
    ("change", "targets", "message"),
    [
        ({}, (), ""),
        ({}, ("evaluate", "evaluate_bm25"), ""),
        ({}, ("evaluate@m", "report"), ""),
        ({}, ("rerank@r",), "p: table.models: "),  # reads a run, which nothing has measured
        ({"measures": ("nDCG@10",)}, (), ""),  # of the default measures, RR@10 and nDCG@10 among them
        (
            {"measures": ("R@9",)},
            (),
            "p: table.measures: found 'R@9', expected one of its evaluate.measures: nDCG@10, RR@10, R@100, AP; add it",
        ),
        ({"models": ("n",)}, (), "p: table.models: found 'n', expected one of bm25, m, q, r, s"),
        ({"models": ("q",)}, ("evaluate", "evaluate_bm25"), "p: table.models: q is measured by evaluate_adore@q, which targets lack"),
        ({"references": ("star",)}, (), "p: table.references: found 'star'"),
        ({}, ("evaluate@m",), "p: table.references: bm25 is measured by evaluate_bm25, which targets lack"),
    ],
)
def test_a_table_with_an_empty_column_is_refused(change: dict[str, tuple[str, ...]], targets: tuple[str, ...], message: str) -> None:
    layout = LAYOUT.model_copy(update={"measures": ("RR@10",), **change})
    sections = {"rounds": {"m": {}}, "adore": {"q": {}}, "rerank": {"r": {}}, "rescore": {"s": {}}, "mine": None}
    if not message:
        table.check_layout(layout, sections, targets, where="p")
        section = {"evaluate": {"measures": ["RR@10", "R@9"]}}
        table.check_layout(layout.model_copy(update={"measures": ("R@9",)}), sections | section, targets, where="p")
        return
    with pytest.raises(UserError) as error:
        table.check_layout(layout, sections, targets, where="p")
    assert str(error.value).startswith(message)


def test_repetitions_share_a_row_and_edits_come_last(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine: {}\nbm25: {k1: 0.9}\n")
    (tmp_path / "grid.yaml").write_text(
        "sections: recipe.yaml\nset: {bm25.k1: 1}\ngrid: {rounds.a.lr: [1, 2]}\nrepeat: {rounds.a.seed: [3, 4]}\n"
    )
    points = read_points(tmp_path / "grid.yaml", ["bm25.b=0.1"])
    assert [point.name for point in points] == ["lr_1-seed_3", "lr_1-seed_4", "lr_2-seed_3", "lr_2-seed_4"]
    assert [point.setting for point in points] == [(("lr", "1"),), (("lr", "1"),), (("lr", "2"),), (("lr", "2"),)]
    assert points[1].assignments == ("mine={}", 'bm25={"k1": 0.9}', "bm25.k1=1", "rounds.a.lr=1", "rounds.a.seed=4", "bm25.b=0.1")
