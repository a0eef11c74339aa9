"""A round is replayed from the step, and up to the step, that its training had; without that knowledge it is unknown."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from flows.team import exposure
from flows.team.exposure import Training, place_inputs

PARAMS = {"optimizer_from": "continue", "validate_every": 10}


def add(objects: Path, content: object, suffix: str = "") -> str:
    data = json.dumps(content).encode()
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    place = objects / digest[:2] / f"{digest[2:]}{suffix}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return f"{digest}{suffix}"


def training(objects: Path, params: Any, *, state: str = "state.json", curves: str = "round.json") -> Training:
    """`ance2`, which follows `ance1` of 100 steps and has 40 steps; `state` and `curves` name the files of their outs."""
    state_out = add(objects, [{"relpath": state, "md5": add(objects, {"steps": 100})}], ".dir")
    curves_out = add(objects, [{"relpath": curves, "md5": add(objects, {"steps": 40})}], ".dir")
    entry = {
        "cmd": "python -m tasks.train --name ance2 --init-state data/state/ance1",
        "params": {"data/params.json": {"rounds.ance2": params}},
        "outs": [{"path": "data/curves/ance2", "md5": curves_out}],
    }
    return Training("train", "ance2", {"train@ance1": {"outs": [{"path": "data/state/ance1", "md5": state_out}]}, "train@ance2": entry})


def problem_and_steps(one: Training, objects: Path) -> tuple[str, int, int | None]:
    question = exposure._question(one, objects, Path("root"))
    return place_inputs(one, objects, Path("placed")), question["behind"], question["taken"]


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_steps_are_those_of_the_cache(objects: Path) -> None:
    assert problem_and_steps(training(objects, PARAMS), objects) == ("", 100, 40)
    assert problem_and_steps(training(objects, {"optimizer_from": "fresh"}), objects) == ("", 0, None), "all steps that it asks for"


@pytest.mark.parametrize(
    ("steps", "path"), [({"steps": 100}, "data/state/ance1/state.json"), ({"steps": 40}, "data/curves/ance2/round.json")]
)
@pytest.mark.parametrize("listing", [False, True])
def test_a_file_that_the_cache_lacks_makes_the_training_unknown(objects: Path, steps: dict[str, int], path: str, *, listing: bool) -> None:
    """Replayed from step 0, it would name records of other batches."""
    one = training(objects, PARAMS)
    digest = add(objects, steps)
    (objects / digest[:2] / digest[2:]).unlink()
    paths = path
    if listing:
        for file in objects.rglob("*.dir"):
            file.unlink()
        path = "data/state/ance1/state.json"
        paths = f"{path} data/curves/ance2/round.json"
    assert problem_and_steps(one, objects)[0] == f"{path} is not in the cache; fetch it: dvc fetch --all-commits {paths}"
    assert problem_and_steps(training(objects / "other", {"optimizer_from": "fresh"}), objects)[0] == "", "not needed"


def test_files_that_an_earlier_version_did_not_make_are_not_missing(objects: Path) -> None:
    assert problem_and_steps(training(objects, PARAMS, state="optimizer.json", curves="curve.json"), objects) == ("", 0, None)
