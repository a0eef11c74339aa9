"""Real runs of a toy project (conftest) with an export.yaml."""

from typing import Any

import pytest


def test_a_run_is_exported_once_and_a_mistake_is_refused_before_it(finished_toy: Any) -> None:
    pytest.importorskip("tensorboard")
    file, events = finished_toy.folder / "export.yaml", finished_toy.folder / "events"
    file.write_text("tensorboard: {folder: events, colour: red}\n")
    result = finished_toy.call("run")
    assert (result.returncode, result.stderr) == (2, "retemper: export.yaml: tensorboard.colour: unknown key, expected one of folder\n")
    file.write_text("tensorboard: {folder: events}\nseconds: 300\n")
    before = (finished_toy.folder / "dvc.lock").read_bytes()
    result = finished_toy.call("run")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "exported to tensorboard"
    assert "Ran" not in result.stdout, "no stage is run again for it"
    assert (finished_toy.folder / "dvc.lock").read_bytes() == before
    assert len(list(events.iterdir())) == 1
    assert "exported" not in finished_toy.call("run").stdout, "nothing is new"
    file.write_text("tensorboard: {folder: step.py/events}\nseconds: 300\n")
    result = finished_toy.call("run")
    assert result.returncode == 0, "what fails is a warning"
    assert "retemper: warning: not exported to tensorboard: NotADirectoryError" in result.stderr
