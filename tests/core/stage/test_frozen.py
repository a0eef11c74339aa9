"""What a run freezes: an order of keys counts, though DVC compares mappings."""

import json
from pathlib import Path
from typing import Any

from tasks.core.stage.frozen import freeze_parameters

ROUNDS = {"a": {"init": "base", "steps": 5}, "b": {"init": "base", "steps": 6}}


def frozen(project: Path, sections: dict[str, Any]) -> dict[str, Any]:
    (project / "params.yaml").write_text(json.dumps(sections))
    freeze_parameters(project)
    return dict(json.loads((project / "data/params.json").read_text()))


def test_the_order_of_systems_and_of_their_settings_counts(tmp_path: Path) -> None:
    first = frozen(tmp_path, {"rounds": ROUNDS, "index": {"build": "cpu", "probes": 1}})
    assert frozen(tmp_path, {"index": {"probes": 1, "build": "cpu"}, "rounds": ROUNDS}) == first
    for rounds in (dict(reversed(ROUNDS.items())), ROUNDS | {"a": dict(reversed(ROUNDS["a"].items()))}):
        other = frozen(tmp_path, {"rounds": rounds, "index": {"build": "cpu", "probes": 1}})
        assert other | {"order": ""} == first | {"order": ""}
        assert other["order"] != first["order"]
        assert json.dumps(other["rounds"]) == json.dumps(rounds), "the file has the new order"
