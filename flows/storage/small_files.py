"""Thousands of small files in a cache or a remote: listed in one call, and copied many at a time."""

import os
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

AT_ONCE = 16  # copies at a time; each is a round trip


@dataclass(frozen=True)
class Place:
    """A folder on one of DVC's filesystems. It need not exist."""

    fs: Any
    folder: str

    @classmethod
    def on_disk(cls, folder: Path) -> "Place":
        """A folder of this machine."""
        from dvc.fs import LocalFileSystem

        return cls(LocalFileSystem(), str(folder))

    @property
    def is_local(self) -> bool:
        return bool(self.fs.protocol == "local")

    def names(self) -> set[str]:
        """The relative paths, with `/`, of all files in the folder and below it. One listing, however many files there are."""
        return set(self.sizes())

    def sizes(self) -> dict[str, int]:
        """As `names`, with the size of each file in bytes."""
        if self.is_local:
            return dict(_walk(self.folder, ""))
        with suppress(FileNotFoundError):
            start = len(self.folder.rstrip("/")) + 1
            return {path[start:]: int(entry["size"]) for path, entry in self.fs.fs.find(self.folder, detail=True).items()}
        return {}

    def read(self, name: str) -> bytes:
        return Path(self.folder, name).read_bytes() if self.is_local else self.fs.cat_file(self.fs.join(self.folder, *name.split("/")))

    def write(self, name: str, content: bytes) -> None:
        """Write a file. On a disk, it is renamed from a temporary name but not flushed: readers treat a truncated record as missing."""
        if not self.is_local:
            path = self.fs.join(self.folder, *name.split("/"))
            self.fs.makedirs(self.fs.parent(path), exist_ok=True)
            self.fs.pipe_file(path, content)
            return
        to = Path(self.folder, name)
        temporary = to.with_name(f".{uuid.uuid4().hex}.partial")
        try:
            try:
                temporary.write_bytes(content)
            except FileNotFoundError:
                to.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
            temporary.replace(to)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def copy(source: Place, target: Place, names: Iterable[str]) -> int:
    """Copy the files `names` that exist; return how many. An error if one cannot be read or written; some may be copied by then."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(threads.map(partial(_copy, source, target), names))


def _copy(source: Place, target: Place, name: str) -> bool:
    try:
        content = source.read(name)
    except FileNotFoundError:
        return False
    target.write(name, content)
    return True


def _walk(folder: str, above: str) -> Iterator[tuple[str, int]]:
    """The paths and sizes of all files below `folder`, except unfinished ones (`....partial`), and those that are gone meanwhile."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, f"{above}{entry.name}/")
        elif not entry.name.endswith(".partial"):
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            yield above + entry.name, size
