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


def test_two_projects_in_one_repository_list_their_own_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took the other's for its own, with the figures of its own dvc.lock."""
    git("init", "--quiet", folder=tmp_path)
    monkeypatch.setattr(store, "cache_folder", lambda: tmp_path)
    for name in ("law", "medicine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "params.yaml").write_text("seed: 1\n")
        (tmp_path / name / "dvc.yaml").write_text("stages: {}\n")
    git("add", ".", folder=tmp_path)
    git("commit", "--quiet", "-m", "two projects", folder=tmp_path)
    baseline = git("rev-parse", "HEAD", folder=tmp_path)
    for name in ("law", "medicine"):
        store.save(tmp_path / name, baseline, f"lr_{name}", inputs="0a", files=[])
    git("update-ref", f"{store.folder_of(baseline)}/of_an_older_version", baseline, folder=tmp_path)
    for name in ("law", "medicine"):
        monkeypatch.chdir(tmp_path / name)
        assert {one.name for one in store.list_experiments(baseline)} == {f"lr_{name}", "of_an_older_version"}
    assert next(one.inputs for one in store.list_experiments() if one.name == "lr_medicine") == "0a"
