"""Why stages must run, in words, from what DVC finds changed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.repository.graph import SOURCE, Graph
from flows.repository.lock import overlap
from tasks.core.params.sections import FROZEN
from tasks.core.stage.frozen import CODE

OUTS = {"not in cache": "is not in the cache", "modified": "differs from dvc.lock"}  # edited by hand, or of another revision


def reasons(status: Mapping[str, Iterable[Any]], graph: Graph) -> dict[str, list[str]]:
    """What has changed for each stage, by name: its code, parameters, a source, its command, or a file that it reads or made.

    Stages without such a reason are absent. `status`: see `read_status`. A changed file that another stage makes is no reason: either that
    stage has one of its own, or its result is as before. Nor is an out that is merely not checked out.
    """
    out_paths = {str(_relative(out)) for stage in graph.stages.values() for out in stage.outs}
    by_stage = {}
    for name, changes in status.items():
        stage_reasons: list[str] = []
        for change in changes:
            if isinstance(change, str):
                stage_reasons.append({"changed command": "its command in dvc.yaml"}.get(change, change))
                continue
            for path, state in change.get("changed deps", {}).items():
                stage_reasons += _of_dep(path, state, out_paths)
            stage_reasons += [f"{path} {OUTS[state]}" for path, state in change.get("changed outs", {}).items() if state in OUTS]
        if stage_reasons:
            by_stage[name] = list(dict.fromkeys(stage_reasons))
    return by_stage


def _of_dep(path: str, state: Any, out_paths: set[str]) -> list[str]:
    if path == str(CODE):
        return ["its code"]
    if isinstance(state, Mapping) and path in (str(FROZEN), SOURCE):
        ending = {"new": " (new)", "deleted": " (gone)"}
        keys = [f"{key.removesuffix('.digest')}{ending.get(str(change), '')}" for key, change in state.items()]
        return [f"source {key}" for key in keys] if path == SOURCE else keys
    if any(overlap(path, out) for out in out_paths):
        return [f"reads {path} (new)"] if state == "new" else []
    return [f"{path} ({state})"]


def _relative(path: Path) -> Path:
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path
