"""Files that are complete or absent: written under a temporary name, flushed to disk, renamed. Digests. Plain and gzip files."""

import gzip
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from tasks.core.errors import UserError

WORKER = "RETEMPER_WORKER"  # set in a worker: only its stage shows progress, and others may write the same files
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
Record = TypeVar("Record")


def partial_path(path: Path) -> Path:
    """The name that `path` has until it is complete; one per path, so a kill leaves at most one. `new_file` in a worker uses others."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write; on success it becomes `path` by one rename, on failure it is removed.

    In a worker, each call has a temporary path of its own: another worker may take this one for lost, and write the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path.with_name(f"{path.name}.{uuid.uuid4().hex}") if os.environ.get(WORKER) else path)
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; on success its files are flushed and it replaces `path` by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                file.chmod(0o644)  # safetensors makes files private, but a team shares the cache
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, completely or not at all."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON with a final newline; NaN is refused (ValueError)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def delete(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a symbolic link, but not what the link points to; nothing if it is missing."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def append_line(path: Path, line: str, *, lasting: bool) -> None:
    """Append a line (UTF-8). If a kill or a full disk has cut off the last one, begin a new line first. `lasting`: flush it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as handle:
        end = handle.seek(0, os.SEEK_END)
        torn = end > 0 and handle.seek(end - 1) >= 0 and handle.read(1) != b"\n"
        handle.write(f"{chr(10) if torn else ''}{line}\n".encode())
        if lasting:
            handle.flush()
            os.fsync(handle.fileno())


def from_record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """A dataclass from its stored values; keys that a newer version has added are ignored. TypeError if a field is missing."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def read_json(path: Path) -> Any:
    """The value of a JSON file; UserError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run the stage that makes it") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); remove it and run again") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing, unreadable, truncated, or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed with gzip, by its first bytes, not its name. Raises OSError if it cannot be read."""
    with path.open("rb") as handle:
        return handle.read(len(GZIP)) == GZIP


def open_unpacked(path: Path) -> BinaryIO:
    """A file's bytes, uncompressed. Reading a corrupt gzip file raises EOFError, zlib.error, or gzip.BadGzipFile."""
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else path.open("rb")


def file_stamp(path: Path) -> list[int]:
    """Size, mtime, ctime (both in ns), and inode of a file: they show whether it was changed or replaced, without reading it."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def folder_digest(path: Path, digest_of: Callable[[Path], str] = file_digest) -> str:
    """SHA-256 over the relative names and bytes of all files below `path`, in name order; `digest_of`: the digest of a file."""
    total = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\0{digest_of(file)}\n".encode())
    return total.hexdigest()
