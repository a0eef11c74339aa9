"""The files of a batch, or of the source, and their stamps: what tells whether it has changed since its verdict."""

import os
from pathlib import Path

OF_SYSTEMS = (".DS_Store", "Thumbs.db", "desktop.ini")  # files that looking into a folder leaves there


def files_below(path: Path) -> list[Path]:
    """The files of a batch, or of the source. `qrels` may be a link to a folder, which is read, and which rglob does not enter."""
    return [path] if path.is_file() else sorted(file for file in {*path.rglob("*"), *path.glob("qrels/*")} if file.is_file())


def is_data(file: Path, path: Path) -> bool:
    """Whether a file of a batch or source `path` may be data: those that are hidden, or of an operating system, are not."""
    parts = file.relative_to(path).parts
    return file.name not in OF_SYSTEMS and not any(part.startswith(".") for part in parts)


def is_empty(path: Path) -> bool:
    """Whether no file of a batch that exists has a byte."""
    return path.exists() and not any(file.stat().st_size for file in files_below(path) if is_data(file, path))


def stats_of(path: Path) -> str:
    """Names, sizes, and times of the files that may be data."""
    files = {file.relative_to(path).as_posix(): file for file in files_below(path) if is_data(file, path)}
    stats = [(os.fsencode(name).decode(errors="backslashreplace"), file.stat()) for name, file in files.items()]  # not all are UTF-8
    return " ".join(f"{name}:{status.st_size}:{status.st_mtime_ns}" for name, status in stats)
