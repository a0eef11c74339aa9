"""What `retemper experiments` advises, followed to the letter."""

from pathlib import Path
from typing import Any

import pytest

from flows.experiments import store
from flows.repository.git import git


def test_the_advice_takes_an_experiment_over(finished_toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished_toy.folder)
    store.save(Path(), git("rev-parse", "HEAD"), "taken-0a1b2c", inputs="of something", files=["dvc.lock"])
    finished_toy.set_rounds(a="1", b="7")
    assert finished_toy.run("evaluate@b")["train@b"] == "Ran"
    advice = finished_toy.call("experiments").stdout.rpartition("to adopt one: ")[2].partition(", then retemper run")[0]
    finished_toy.command(*advice.replace("NAME", "taken-0a1b2c").split())
    assert set(finished_toy.run().values()) == {"Cached"}
    assert (finished_toy.folder / "data/encoders/b").read_text().startswith("2(")
