"""Freeze the inputs of a run when it starts: parameters, code digests, and the code itself.

`freeze` writes data/params.json (params.yaml as JSON) and data/code.json ({stage: digest of its code}), which the stages of
dvc.yaml depend on, and makes the frozen copy of tasks/ that they execute. Edits during a run count for the next one.
"""

import json
from pathlib import Path

from tasks.core.stage.code import MEMORY, PACKAGE, Reader, freeze_code
from tasks.core.stage.files import write_json
from tasks.core.stage.params import FROZEN, read_yaml

CODE = Path("data/code.json")


def freeze(project: Path = Path()) -> Path | None:
    """Freeze parameters and code of `project`; returns the folder to import `tasks` from, None if the project has no code of its own.

    A file is written only if its content changes. UserError if params.yaml cannot be read.
    """
    freeze_parameters(project)
    if not (project / PACKAGE).is_dir():
        return None
    code = freeze_code(project)
    _update(project / CODE, Reader(code, project / MEMORY).stage_digests())
    return code


def freeze_parameters(project: Path = Path()) -> None:
    """Write only data/params.json. UserError if params.yaml cannot be read."""
    _update(project / FROZEN, read_yaml(project / "params.yaml"))


def _update(path: Path, value: object) -> None:
    try:
        if json.loads(path.read_text(encoding="utf-8")) == value:
            return
    except (FileNotFoundError, ValueError):
        pass
    write_json(path, value)
