"""Freeze the inputs of a run when it starts: parameters, code digests, and the code itself.

`freeze` writes data/params.json (params.yaml as JSON, with digests of the code that it names and of its order) and data/code.json
({stage: digest of its code}), which the stages of dvc.yaml depend on, and makes the frozen copy of tasks/ that they execute. Edits during
a run count for the next one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.core.files import write_json
from tasks.core.params.sections import FROZEN, read_yaml
from tasks.core.stage.code import MEMORY, PACKAGE, Reader, freeze_code
from tasks.core.stage.references import freeze_references

CODE = Path("data/code.json")
ORDER = "order"  # key of data/params.json: a digest of the order of keys in SHOWN, on which the report depends
# Sections of which the report shows entries, and their settings, in the order of params.yaml; the place in it decides ties, too.
SHOWN = ("bm25", "encoders", "pretrain", "rounds", "adore", "fuse", "rerank", "rescore")


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
    sections = freeze_references(read_yaml(project / "params.yaml"), reader or Reader(project))
    _update(project / FROZEN, {**sections, ORDER: order_digest(sections)})


def order_digest(sections: Mapping[str, Any]) -> str:
    """A digest of the order of all keys in the sections of SHOWN. DVC compares mappings, for which the order does not count."""
    keys = "\n".join(key for section in SHOWN for key in _keys(sections.get(section), section))
    return hashlib.sha256(keys.encode()).hexdigest()[:16]


def _keys(value: object, key: str) -> Iterator[str]:
    yield key
    for name, child in value.items() if isinstance(value, Mapping) else ():
        yield from _keys(child, f"{key}.{name}")


def _update(path: Path, value: object) -> None:
    try:
        if json.loads(path.read_text(encoding="utf-8")) == value:
            return
    except (FileNotFoundError, ValueError):
        pass
    write_json(path, value)
