"""Unfinished work that survives a kill: an ignored folder in the project, keyed by a digest of the work's inputs."""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tasks
from tasks.core.errors import UserError
from tasks.core.files import file_digest, folder_digest, write_text
from tasks.core.stage.code import MEMORY, Reader

ROOT = Path(".retemper")
FINISHED = "finished"
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")
FAISS = ("faiss-cpu", "faiss-gpu")  # one library under two names
KEPT = 4  # unfinished works kept per kind; the oldest are removed first


def work_digest(*parts: object) -> str:
    """One digest of everything a work depends on: paths count by content (files and folders), the rest by its JSON."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            if not part.exists():
                raise UserError(f"{part}: not found; run the stage that makes it")
            text = folder_digest(part) if part.is_dir() else file_digest(part)
        else:
            text = json.dumps(part, sort_keys=True, default=str)
        total.update(f"{text}\n".encode())
    return total.hexdigest()


def code_digest(stage: str) -> str:
    """Digest of a stage's code (as in data/code.json) and of the libraries that compute; work begun with others is not resumed."""
    return work_digest(libraries(), Reader(Path(tasks.__file__).parents[1], MEMORY).stage_digest(stage))


def libraries() -> list[str]:
    """The versions of the libraries that compute."""
    return [*map(library_version, LIBRARIES), next(filter(None, map(library_version, FAISS)), "")]


def library_version(library: str) -> str:
    """A library's version; empty if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def scratch_folder(kind: str, digest: str) -> Path:
    """The folder of one unfinished work, created if missing; old ones of the same kind are removed.

    If it is new, and other works of its kind are unfinished, print a line that says that those were begun with other inputs or settings.
    """
    folder = ROOT / "scratch" / kind / digest[:32]
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    remove_finished(folder)
    others = sorted((f for f in folder.parent.iterdir() if f != folder), key=lambda f: f.stat().st_mtime, reverse=True)
    if is_new and any(any(other.iterdir()) and not (other / FINISHED).exists() for other in others):
        differs = "inputs, parameters, code, libraries, threads, workers, or hardware"
        print(f"{kind}: starting over; the unfinished work found was begun with different {differs}")
    for old in others[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def seal(path: Path) -> None:
    """Mark a finished piece of work as complete, with a digest next to it: a power failure may truncate or empty any file."""
    write_text(_mark(path), file_digest(path))


def is_sealed(path: Path) -> bool:
    """Whether a piece exists and is unchanged since it was sealed; otherwise it must be made again."""
    mark = _mark(path)
    return path.exists() and mark.exists() and mark.read_bytes() == file_digest(path).encode()


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def mark_finished(folder: Path) -> None:
    """Mark a work as done. It is kept until its outs are safe, because a kill may come while DVC caches them."""
    (folder / FINISHED).touch()
    _flush(folder)


def remove_finished(current: Path | None = None) -> None:
    """Remove finished works: all of them (DVC has their outs), or only those of the same kind as `current`, except `current` itself."""
    for mark in list((current.parent if current else ROOT / "scratch").glob(f"*/{FINISHED}" if current else f"*/*/{FINISHED}")):
        if mark.parent != current:
            with suppress(OSError):
                _remove(mark.parent)


def _remove(folder: Path) -> None:
    """Remove a finished work, its mark last: after a power failure no part of it may be taken for an unfinished one."""
    for path in folder.iterdir():
        if path.name != FINISHED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _flush(folder)
    shutil.rmtree(folder)


def _flush(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
