"""A source that changes during a sweep: later points would be trained on other data than the earlier ones in their table."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.experiments import store
from flows.experiments.sweep import sweep
from flows.repository.lock import commit_of

RUN = """
import json, pathlib
now = pathlib.Path({now!r})
pathlib.Path("data").mkdir(exist_ok=True)
pathlib.Path("data/source.json").write_text(now.read_text())
pathlib.Path("dvc.lock").write_text(json.dumps({{"schema": "2.0", "stages": {{}}}}))
now.write_text(now.read_text().replace("of the evening", "of the night"))
"""


def test_a_point_of_other_data_is_not_stored(toy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(toy.folder)
    for name, value in toy.environment.items():
        if name.startswith("GIT_"):
            monkeypatch.setenv(name, value)
    now = toy.folder.parent / "now.json"
    entries = {"dataset": {"source": "beir:../x", "digest": "of the evening"}, "rerankers": {"small": {"digest": "of the model"}}}
    now.write_text(json.dumps(entries))
    Path("grid.yaml").write_text("grid: {first: [x, y]}\n")

    def stored() -> tuple[int, list[str]]:
        status = sweep(
            Path("grid.yaml"),
            1,
            False,
            run=[sys.executable, "-c", RUN.format(now=str(now))],
            check=lambda _: None,
            describe=lambda _, described: (described.write_text(now.read_text()), None)[1],
        )
        return status, sorted(one.name.rpartition("-")[0] for one in store.list_experiments(commit_of("HEAD")))

    assert stored() == (1, ["first_x"])
    assert capsys.readouterr().err == (
        "retemper: first_y: the source of dataset has changed since the sweep began, so the point is not stored; run the sweep again\n"
    )
    assert stored() == (0, ["first_x", "first_x", "first_y"]), "then all points are of the new data"
