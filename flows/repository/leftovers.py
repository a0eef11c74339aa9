"""Delete outs of an earlier graph that the current one does not have. Otherwise a removed round's metrics would be in the report."""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tasks.core.files import delete, partial_path, write_json
from tasks.core.params.sections import read_yaml

RECORDS = Path(".retemper")
MEMORY = RECORDS / "outs.json"
LOCK = Path("dvc.lock")
OF_DVC = re.compile(r"\.[\w-]{22}\.tmp")  # temporary files of DVC, which a kill leaves behind
# and our own, in a cache or remote: of JSON, of objects by their digest or the rest of it, and of recorded runs
PARTIAL = re.compile(r"\..+\.(json|tmp)\.partial|\.[0-9a-f]{30}(\.dir)?\.partial|\.([0-9a-f]{32}){1,2}\.partial")


def remove(outs: Iterable[Path], warn: Callable[[str], None]) -> list[Path]:
    """Delete former outs that are not among `outs`; return what was deleted.

    Only folders that hold outs side by side are searched (`data/metrics`, not `data` itself). A file that was never an
    out, as far as dvc.lock and the record of earlier runs know, is the user's, so it only gets a warning.
    """
    root = Path.cwd()
    current = {_relative(out, root) for out in outs}
    remembered = _remembered()
    locked = cache(_locked)  # slow to read, and rarely needed
    deleted = []
    for folder in sorted({out.parent for out in current if len(out.parent.parts) > 1}):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            out = path.with_name(path.name.removeprefix(".").removesuffix(".partial")) if path.name.endswith(".partial") else path
            if path.name == ".gitignore" or any(known.is_relative_to(out) or out.is_relative_to(known) for known in current):
                continue
            if not OF_DVC.fullmatch(path.name) and out not in remembered and out not in locked():
                warn(f"{path}: no stage produced it, but stages would read it as an output; move it elsewhere")
                continue
            delete(path)
            deleted.append(path)
    if current - remembered:
        write_json(MEMORY, sorted(str(out) for out in current | remembered))
    return deleted


def remove_unfinished(outs: Iterable[Path], cache: Path) -> None:
    """Delete half-written files of killed processes: beside `outs`, among records, and at the top of a cache in this project.

    The next attempt at a stage would delete its own, but a cached stage is not attempted again.
    """
    places = {RECORDS, *([cache] if cache.resolve().is_relative_to(Path.cwd().resolve()) else [])}
    for out in outs:
        delete(partial_path(out))
        places.add(out.parent)
    temporary = [path for place in places for path in place.glob(".*.tmp") if OF_DVC.fullmatch(path.name)]
    for path in [*temporary, *RECORDS.glob(".*.partial"), *RECORDS.glob("bin/.*.partial"), partial_path(LOCK)]:
        path.unlink(missing_ok=True)


def unfinished_copies(cache: Path) -> list[Path]:
    """Half-written files of killed processes in a cache or a folder remote. During a run, the files it is writing are among them."""
    folders = (".", "files/md5", "files/md5/*", "runs/*/*", "made/*")
    found = [path for folder in folders for path in cache.glob(f"{folder}/.*") if path.is_file()]
    return sorted(path for path in found if OF_DVC.fullmatch(path.name) or PARTIAL.fullmatch(path.name))


def _remembered() -> set[Path]:
    try:
        return {Path(name) for name in json.loads(MEMORY.read_text(encoding="utf-8"))}
    except (FileNotFoundError, ValueError):
        return set()


def _locked() -> set[Path]:
    stages = read_yaml(LOCK).get("stages", {}) if LOCK.exists() else {}
    return {Path(out["path"]) for stage in stages.values() for out in stage.get("outs", [])}


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path
