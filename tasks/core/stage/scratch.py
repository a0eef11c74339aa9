"""Unfinished work that survives a kill: an ignored folder under the project, keyed by a digest of what the work is made of."""

import hashlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import tasks
from tasks.core.stage.code import Reader
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import file_digest, folder_digest, write_text

ROOT = Path(".retemper")
FINISHED = "finished"
KEPT = 4  # unfinished works of one kind that are kept; the oldest go first


def work_digest(*parts: object) -> str:
    """One digest of all that a work depends on: paths count by content (files and folders), the rest by its JSON."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            if not part.exists():
                raise UserError(f"{part}: not there; run the stage that makes it")
            text = folder_digest(part) if part.is_dir() else file_digest(part)
        else:
            text = json.dumps(part, sort_keys=True, default=str)
        total.update(f"{text}\n".encode())
    return total.hexdigest()


def code_digest(stage: str) -> str:
    """Digest of a stage's code (that of data/code.json) and of the libraries that compute: work begun by others is not resumed."""
    return work_digest([version("torch"), version("transformers")], Reader(Path(tasks.__file__).parents[1]).stage_digest(stage))


def scratch_folder(kind: str, digest: str) -> Path:
    """The folder of one unfinished work, made if it is not there; old ones of the same kind are removed."""
    folder = ROOT / "scratch" / kind / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    remove_finished(folder)
    others = sorted((f for f in folder.parent.iterdir() if f != folder), key=lambda f: f.stat().st_mtime, reverse=True)
    for old in others[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def seal(path: Path) -> None:
    """Say that a finished piece of work is whole, by its digest beside it: a machine that loses its power may cut or empty any file."""
    write_text(_mark(path), file_digest(path))


def sealed(path: Path) -> bool:
    """Whether a piece is there and as it was when it was sealed; else it is to be made again."""
    mark = _mark(path)
    return path.exists() and mark.exists() and mark.read_bytes() == file_digest(path).encode()


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def finish(folder: Path) -> None:
    """Say that a work is done. It is kept until its outs are safe, for a kill may come while DVC takes them in."""
    (folder / FINISHED).touch()


def remove_finished(but: Path | None = None) -> None:
    """Remove works that are done: all of them (DVC has their outs), or those of the same kind as `but`, and not that one."""
    for mark in list((but.parent if but else ROOT / "scratch").glob(f"*/{FINISHED}" if but else f"*/*/{FINISHED}")):
        if mark.parent != but:
            shutil.rmtree(mark.parent, ignore_errors=True)
