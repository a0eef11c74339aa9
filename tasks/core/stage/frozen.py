"""Freeze the inputs of a run when it starts: parameters, code digests, and the code itself.

`freeze` writes data/params.json (params.yaml as JSON, with digests of the code that it names) and data/code.json ({stage: digest of its
code}), which the stages of dvc.yaml depend on, and makes the frozen copy of tasks/ that they execute. Edits during a run count for the
next one.
"""

import json
from pathlib import Path

from tasks.core.files import write_json
from tasks.core.params.sections import FROZEN, read_yaml
from tasks.core.stage.code import MEMORY, PACKAGE, Reader, freeze_code
from tasks.core.stage.references import freeze_references

CODE = Path("data/code.json")


def freeze(project: Path = Path()) -> Path | None:
    """Freeze parameters and code of `project`; returns the folder to import `tasks` from, None if the project has no code of its own.

    A file is written only if its content changes. UserError if params.yaml cannot be read, or names code that is missing.
    """
    code = freeze_code(project) if (project / PACKAGE).is_dir() else None
    reader = Reader(code or project, project / MEMORY)
    freeze_parameters(project, reader)
    if code:
        _update(project / CODE, reader.stage_digests())
    return code


def freeze_parameters(project: Path = Path(), reader: Reader | None = None) -> None:
    """Write only data/params.json. UserError if params.yaml cannot be read, or names code that is missing."""
    _update(project / FROZEN, freeze_references(read_yaml(project / "params.yaml"), reader or Reader(project)))


def _update(path: Path, value: object) -> None:
    try:
        if json.loads(path.read_text(encoding="utf-8")) == value:
            return
    except (FileNotFoundError, ValueError):
        pass
    write_json(path, value)
