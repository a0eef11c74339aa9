"""ANCE rounds in params.yaml, with comments kept and refusals undone; lag 1 overlaps as promised."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flows.parameters import ance
from flows.parameters.ance import Ance
from flows.parameters.edit import apply
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

GRAPH = """
stages:
  base:
    cmd: python step.py data/encoders/base one
    outs: [data/encoders/base]
  none:
    cmd: python step.py data/negatives/none one
    outs: [data/negatives/none]
  train:
    foreach: ${rounds}
    do:
      cmd: python step.py data/encoders/${key} trained data/encoders/${item.init} data/negatives/${item.negatives}
      deps: ["data/encoders/${item.init}", "data/negatives/${item.negatives}"]
      params: ["rounds.${key}"]
      outs: ["data/encoders/${key}"]
      meta: {slot: device}
  mine:
    foreach: ${mine}
    do:
      cmd: python step.py data/negatives/${key} mined data/encoders/${key}
      deps: ["data/encoders/${key}"]
      params: ["mine.${key}"]
      outs: ["data/negatives/${key}"]
      meta: {slot: device}
"""


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path) -> Path:
    shutil.copy(checkout / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "params.yaml"


def some_ance(**values: Any) -> Ance:
    return Ance(**{"n": 4, "lag": 1, "init": "warmup", "negatives": "warmup", "steps": 50, **values})


@pytest.mark.parametrize(
    ("lag", "sources"),
    [
        (0, ["warmup", "ance1", "ance2", "ance3"]),
        (1, ["warmup", "warmup", "ance1", "ance2"]),
        (2, ["warmup", "warmup", "warmup", "ance1"]),
        (9, ["warmup"] * 4),
    ],
)
def test_each_round_starts_from_the_one_before_and_its_negatives_lag(params: Path, lag: int, sources: list[str]) -> None:
    before = params.read_text()
    assert ance.add(some_ance(lag=lag, settings=["lr=1e-6", "window=[1, 100]"])) == ["ance1", "ance2", "ance3", "ance4"]
    content = read_yaml(params)
    entries = [content["rounds"][f"ance{k}"] for k in range(1, 5)]
    assert [entry["init"] for entry in entries] == ["warmup", "ance1", "ance2", "ance3"]
    assert [entry["negatives"] for entry in entries] == sources
    for entry in entries:
        assert (entry["loss"], entry["in_batch"], entry["hard_negatives"]) == ("nll", False, 1)
        assert (entry["steps"], entry["lr"], entry["window"]) == (50, 1e-6, [1, 100])
    assert set(content["mine"]) == {"warmup", *sources}, "what is mined is what a round reads"
    comments = [line.partition("#")[2] for line in before.splitlines() if "#" in line]
    assert all(comment in params.read_text() for comment in comments)
    assert ance.remove("ance") == ["ance1", "ance2", "ance3", "ance4"]
    assert read_yaml(params) == {
        **content,
        "rounds": {k: v for k, v in content["rounds"].items() if k[:4] != "ance"},
        "mine": {"warmup": content["mine"]["warmup"]},
    }
    assert params.read_text() == before


def test_refreshes_keep_the_optimizer_and_its_schedule(params: Path) -> None:
    """As the released code does: one long training whose data change."""
    ance.add(some_ance())
    entries = [read_yaml(params)["rounds"][f"ance{k}"] for k in range(1, 5)]
    assert [entry.get("optimizer_from") for entry in entries] == [None, "continue", "continue", "continue"]
    assert [entry["schedule_steps"] for entry in entries] == [200] * 4
    assert {entry["seed"] for entry in entries} == {44}, "one long training has one order, which is neither warmup's (42) nor star's (43)"


@pytest.mark.parametrize(
    ("values", "optimizer_from"), [({"steps": None}, "moments"), ({"optimizer": "moments"}, "moments"), ({"optimizer": "fresh"}, None)]
)
def test_rounds_with_schedules_of_their_own(params: Path, values: dict[str, Any], optimizer_from: str | None) -> None:
    ance.add(some_ance(**values))
    entries = [read_yaml(params)["rounds"][f"ance{k}"] for k in range(1, 5)]
    assert [entry.get("optimizer_from") for entry in entries] == [None, optimizer_from, optimizer_from, optimizer_from]
    assert not any("schedule_steps" in entry for entry in entries)


def test_rounds_that_start_over_draw_other_queries(params: Path) -> None:
    ance.add(some_ance(optimizer="fresh"))
    assert [read_yaml(params)["rounds"][f"ance{k}"]["seed"] for k in range(1, 5)] == [44, 45, 46, 47]
    ance.add(some_ance(prefix="more", optimizer="moments"))
    assert [read_yaml(params)["rounds"][f"more{k}"]["seed"] for k in range(1, 5)] == [48, 49, 50, 51]


def test_a_round_that_was_not_mined_yet_is_mined(params: Path) -> None:
    ance.add(some_ance(init="star", negatives="star"))
    assert set(read_yaml(params)["mine"]) == {"warmup", "star", "ance1", "ance2"}
    ance.add(some_ance(n=2, init="base", negatives="bm25", prefix="x"))
    assert set(read_yaml(params)["mine"]) == {"warmup", "star", "ance1", "ance2"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"init": "nowhere", "negatives": "bm25"}, "rounds.ance1.init: found 'nowhere'"),
        ({"init": "base", "negatives": "base"}, "rounds.ance1.negatives: found 'base'"),
        ({"prefix": "Ance"}, "found the name 'Ance1'"),
        ({"settings": ["lr"]}, "expected key=value of a round"),
        ({"settings": ["speed=9"]}, "rounds.ance1.speed: unknown key"),
        ({"settings": ["window=[201, 300]"]}, "rounds.ance1.hard_negatives: found 1, expected at most 0: mine.warmup.depth"),
        ({"optimizer": "continue", "steps": None}, "expected --steps"),
    ],
)
def test_refused_and_undone(params: Path, values: dict[str, Any], message: str) -> None:
    before = params.read_text()
    with pytest.raises(UserError) as refusal:
        ance.add(some_ance(**values))
    assert message in str(refusal.value)
    assert params.read_text() == before


def test_names_that_are_taken_or_needed(params: Path) -> None:
    ance.add(some_ance())
    before = params.read_text()
    with pytest.raises(UserError, match=r"rounds.ance1: already exists; run retemper rounds remove ance"):
        ance.add(some_ance(n=1))
    apply(["rounds.after={init: ance4, negatives: none}"], params, lambda _: None)
    with pytest.raises(UserError, match=r"rounds.after.init: found 'ance4'"):
        ance.remove("ance")
    with pytest.raises(UserError, match="no rounds other1"):
        ance.remove("other")
    apply(["rounds.after="], params, lambda _: None)
    assert params.read_text() == before


def test_lag_1_mines_beside_a_training_and_lag_0_in_turn(served_toy: Any) -> None:
    """Three rounds on two devices. Lag 0: train, mine, train, mine, train. Lag 1: train, train beside mine, train."""
    toy = type(served_toy)(served_toy.folder, served_toy.environment | {"CUDA_VISIBLE_DEVICES": "0,1"})
    (toy.folder / "dvc.yaml").write_text(GRAPH)
    params = toy.folder / "params.yaml"
    # Each waits for the other to begin: the run ends only if both are in progress at once.
    toy.set_acts(encoders__lag1_2="meet negatives/lag1_1", negatives__lag1_1="meet encoders/lag1_2")
    for lag in (0, 1):
        plan = Ance(n=3, lag=lag, init="warmup", negatives="warmup", prefix=f"lag{lag}_")
        params.write_text("rounds: {warmup: {init: base, negatives: none}}\nmine: {warmup: {}}\n")
        apply(plan.assignments({"warmup": {"seed": 42}}, ["warmup"]), params, lambda _: None)
        toy.run("train")
    times = toy.times()
    sequences = {
        0: ["encoders/lag0_1", "negatives/lag0_1", "encoders/lag0_2", "negatives/lag0_2", "encoders/lag0_3"],
        1: ["encoders/lag1_1", "negatives/lag1_1", "encoders/lag1_3"],
    }
    for names in sequences.values():
        for before, after in pairwise(names):
            assert times[before][1] <= times[after][0], f"{after} waits for {before}"
    assert times["encoders/lag1_2"][1] <= times["encoders/lag1_3"][0]
    assert "negatives/lag1_2" not in times, "no round reads them"
