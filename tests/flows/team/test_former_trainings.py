"""Trainings that this version cannot replay: what is known of the others is shown, and erasure goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.forgetting import forget
from flows.team import exposure
from tasks import exposure as replaying
from tasks.core.errors import UserError

FORMER = {"init": "base", "negatives": "none", "steps": 0, "optimizer_from": "anew"}
PART = {"id": "d1", "role": "positive", "first": 1, "last": 2, "count": 2}


def lock_with(params: Any) -> Any:
    return {"train@star": {"cmd": "train", "params": {"data/params.json": {"rounds.star": params}}}}


def test_a_training_with_former_parameters_is_unknown_and_the_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").touch()
    locks = {"working tree": lock_with({"steps": 3}), "champion/1": lock_with(FORMER), "champion/2": lock_with(None)}

    def ask(_: str, question: Any) -> Any:
        current, *former = question["trainings"]
        assert current["params"] == {"steps": 3}
        answers = [([PART], 3, ""), *(replaying.parts_or_problem(one, question["records"], tmp_path) for one in former)]
        parts, totals, problems = zip(*answers, strict=True)
        return {"records": {"d1": ["document"]}, "parts": parts, "totals": totals, "problems": problems}

    monkeypatch.setattr(exposure, "ask", ask)
    monkeypatch.setattr(exposure, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(exposure, "champions", dict)
    found = exposure.expose(["d1"], locks)
    assert [(part.training, part.seen, part.steps) for part in found.parts] == [("train@star", ("working tree",), 3)]
    assert [model.seen for model in found.models] == ["working tree"]
    first, second = found.notes
    assert first.startswith("train@star (champion/1): unknown: train@star: optimizer_from: found 'anew'")
    assert second.startswith("train@star (champion/2): unknown: ")


@pytest.mark.parametrize(
    ("seen", "command"),
    [
        (("working tree", "champion/1"), "dvc fetch data/tokens data/negatives/star, or retemper run"),
        (("champion/1", "champion/2"), "dvc fetch --all-tags data/tokens data/negatives/star"),
        (("3f2a91c",), "dvc fetch --all-commits data/tokens data/negatives/star"),
    ],
)
def test_data_of_another_dvc_lock_are_fetched_by_a_command_that_fetches_them(seen: tuple[str, ...], command: str, tmp_path: Path) -> None:
    """`dvc fetch` takes those of the working tree alone, so a colleague was sent round in circles. Without paths, it takes all outs."""
    lock: Any = lock_with({"steps": 3})
    deps = [{"path": path, "md5": "0a.dir"} for path in ("data/tokens", "data/encoders/init", "data/negatives/star")]
    lock["train@star"] |= {"cmd": "train --tokens data/tokens --negatives data/negatives/star --init data/encoders/init", "deps": deps}
    problem = exposure.place_inputs(exposure.Training("train", "star", lock, seen), tmp_path, tmp_path / "root")
    made_again = "data/tokens has been made again since (check out an earlier dvc.lock)"
    assert problem == f"{made_again}, or is not in the cache; fetch it: {command}"


def test_a_record_is_not_said_to_be_in_no_training_if_one_could_not_be_replayed() -> None:
    note = "train@star (champion/1): unknown: data/tokens is not in the cache"
    for notes, said in (((), "took part in no training"), ((note,), "took part in no training that could be replayed")):
        assert exposure.as_text(exposure.Exposure({"d1": []}, (), (), notes)).splitlines()[1] == said


@pytest.mark.parametrize("error", [KeyError("prefix"), ValueError("a former form"), TypeError("no mapping")])
def test_files_of_a_former_form_are_a_problem_of_their_training(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(*_: object) -> None:
        raise error

    monkeypatch.setattr(replaying, "replay", replay)
    message = f"cannot be replayed by this version ({type(error).__name__}: {error})"
    assert replaying.parts_or_problem({"stage": "train", "name": "star"}, ["d1"], tmp_path) == ([], 0, message)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(2), "the reason is above"),
        (RuntimeError("tasks.exposure ended with status 1"), "tasks.exposure ended with status 1"),
        (UserError("dvc.lock: not found"), "dvc.lock: not found"),
    ],
)
def test_records_are_forgotten_even_if_it_is_unknown_who_saw_them(
    error: BaseException, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expose(*_: object) -> None:
        raise error

    monkeypatch.setattr(exposure, "expose", expose)
    monkeypatch.setattr(exposure, "known_locks", dict)
    plan: Any = SimpleNamespace(holdings=SimpleNamespace(ids={"d1"}), notes=[])
    told: list[str] = []
    assert forget.exposed_models(plan, told.append) == []
    assert told == [f"which models saw them is unknown: {reason}"]


def test_a_command_that_is_stopped_is_no_unknown_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def expose(*_: object) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(exposure, "expose", expose)
    monkeypatch.setattr(exposure, "known_locks", dict)
    plan: Any = SimpleNamespace(holdings=SimpleNamespace(ids={"d1"}), notes=[])
    with pytest.raises(SystemExit):
        forget.exposed_models(plan, print)
