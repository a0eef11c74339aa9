"""The points of a sweep's file."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.experiments.grid import Point, read_points
from flows.experiments.sweep import inputs
from tasks.core.errors import UserError


def points(tmp_path: Path, text: str, edits: Sequence[str] = ()) -> list[Point]:
    (tmp_path / "grid.yaml").write_text(text)
    return read_points(tmp_path / "grid.yaml", edits)


def test_the_points_of_a_grid_and_named_ones(tmp_path: Path) -> None:
    result = points(
        tmp_path,
        """
        set: {bm25.k1: 1.2}
        grid: {rounds.star.lr: [1e-5, 5.0e-5], rounds.star.window: [[1, 20], null]}
        points:
          costa:
            pretrain.costa: {init: base, objective: costa}
            rounds.warmup.init: costa
            text.separator: ": "
            prepare.unknown_documents: "null"
        """,
    )
    assert [point.name for point in result] == [
        "lr_1e-05-window_1_20",
        "lr_1e-05-window_null",
        "lr_5e-05-window_1_20",
        "lr_5e-05-window_null",
        "costa",
    ]
    assert result[0].assignments == ("bm25.k1=1.2", "rounds.star.lr=1e-05", "rounds.star.window=[1, 20]")
    assert result[1].assignments[-1] == "rounds.star.window=null"
    assert result[-1].assignments == (
        "bm25.k1=1.2",
        'pretrain.costa={"init": "base", "objective": "costa"}',
        "rounds.warmup.init=costa",
        'text.separator=": "',
        'prepare.unknown_documents="null"',
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected grid"),
        ("gird: {a: [1]}", "found gird"),
        ("grid: [1]", "grid: expected a mapping"),
        ("points: {'a b': {x: 1}}", "points.a b: expected a name"),
        ("points: {a: 1}", "and a mapping of keys"),
        ("points: {a..b: {x: 1}}", r"points.a\.\.b: expected a name of letters, digits, _, - and single dots within"),
        ("points: {a.lock: {x: 1}}", "points.a.lock: expected a name"),
        ("points: {a.: {x: 1}}", "points.a.: expected a name"),
        ("points: {.a: {x: 1}}", "points..a: expected a name"),
        ("points: {'a@{b': {x: 1}}", "points.a@{b: expected a name"),
        ("grid: {a: []}", "no points"),
        ("grid: {1: [1, 2]}", "grid: found the key 1, expected keys of params.yaml"),
        ("points: {p: {2: 1}}", "points.p: found the key 2, expected keys of params.yaml"),
        ("grid: {a: [1]}\npoints: {a_1: {a: 2}}", "two points have this name"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        points(tmp_path, text)


def test_git_takes_the_name_of_every_point(tmp_path: Path) -> None:
    """Otherwise a point that cannot be stored would fail only after its run."""
    values = ["../models/a", "../models/b", "...", "x.lock", "a@{1}", "~b^c:d?e*[f", "a..b", "beir:../../x/"]
    long = f"{'a' * 86}../b"  # cut within
    result = points(tmp_path, json.dumps({"grid": {"encoder.source": [*values, long]}, "points": {"v1.2-a_b": {"x": 1}}}))
    assert [point.name for point in result][:2] == ["source_models_a", "source_models_b"]
    for point in result:
        subprocess.run(["git", "check-ref-format", f"refs/exps/ab/{point.name}-012345"], check=True)


def test_epochs_of_a_point_are_refused_where_steps_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("rounds: {star: {steps: 4}}\n")
    with pytest.raises(UserError, match=r"^point x: --set rounds\.star\.epochs=2: has no effect, because rounds\.star\.steps is 4; "):
        inputs(Point("x", ("rounds.star.epochs=2",)), lambda _: None)


def test_steps_on_the_command_line_take_the_place_of_the_files_epochs(tmp_path: Path) -> None:
    """As docs/recipes/low_resource/curve.yaml says. Epochs of a point itself are a matter of the row, so they stay, to be refused."""
    text = "set: {rounds.a.epochs: 1, rounds.b.epochs: 1}\ngrid: {%s: [1, 2]}\n"
    kept = [points(tmp_path, text % "rounds.a.lr", [edit])[0].assignments for edit in ("rounds.a.steps=9", "rounds.a.steps=")]
    assert "rounds.a.epochs=1" in points(tmp_path, text % "rounds.a.lr", ["rounds.a.steps=9", "rounds.a.steps= null"])[0].assignments
    assert kept[0] == ("rounds.b.epochs=1", "rounds.a.lr=1", "rounds.a.steps=9")
    assert kept[1] == ("rounds.a.epochs=1", "rounds.b.epochs=1", "rounds.a.lr=1", "rounds.a.steps="), "steps are removed, so epochs count"
    assert "rounds.a.epochs=1" in points(tmp_path, text % "rounds.a.epochs", ["rounds.a.steps=9"])[0].assignments
