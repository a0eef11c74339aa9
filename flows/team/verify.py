"""`retemper verify`: read every cached object and compare it with its digest. Corrupt ones are removed."""

import hashlib
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.process import locks
from flows.repository.project import repository
from flows.storage import cache
from flows.storage.dvc import PUSHED
from flows.storage.remote import refuse_unmarked
from flows.team.sync import reason
from tasks.core.errors import UserError
from tasks.core.plurals import counted


def verify_cache() -> int:
    """Verify the cache; return the exit status: 0 if every object was intact, else 1 (the next run fixes it)."""
    with locks.hold_run_lock(), repository() as repo, repo.lock:
        root = Path(repo.cache.local_cache_dir) / "files" / "md5"

        corrupt: list[Path] = []

        def remove(path: Path) -> None:
            corrupt.append(path)
            _say(path, "corrupt, removed; the next run restores or recomputes it")
            path.unlink(missing_ok=True)

        count, size = cache.verify(root, remove)
    print(f"{root}: {counted(count, 'objects')}, {size / 1e6:,.1f} MB read, {len(corrupt)} corrupt")
    return 1 if corrupt else 0


def verify_remote(name: str) -> int:
    """Verify the objects of a remote, which downloads all of them; return the exit status, as `verify_cache` does.

    A folder's listing is removed too if one of its objects is corrupt or missing: DVC assumes that all objects of a listing exist, and
    would never send them again.
    """
    try:
        with repository() as repo:
            remote = repo.cloud.get_remote(name)
            refuse_unmarked(remote)
            check = _Check(remote.odb)
            check.objects()
            check.incomplete_listings()
    except Exception as error:  # from DVC, or any library that talks to remotes
        raise UserError(f"remote {name}: cannot be read: {reason(name, error)}") from None
    suffix = f", {counted(len(check.incomplete), 'listings of missing objects')}" if check.incomplete else ""
    print(f"remote {name}: {counted(check.count, 'objects')}, {check.size / 1e6:,.1f} MB read, {len(check.corrupt)} corrupt{suffix}")
    return 1 if check.corrupt or check.incomplete else 0


@dataclass
class _Check:
    """The check of a remote's objects. After a kill or a lost connection, the next push sends what was removed until then."""

    odb: Any
    count: int = 0
    size: int = 0  # bytes read
    intact: set[str] = field(default_factory=set)
    listings: dict[str, set[str]] = field(default_factory=dict)  # by path: the digests that an intact listing names
    corrupt: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)

    def objects(self) -> None:
        """Read every object, listings first, since they are removed before what they list. Corrupt ones are removed."""
        fs = self.odb.fs
        paths = [path for path in (fs.fs.find(self.odb.path) if fs.exists(self.odb.path) else []) if cache.remote_id(path)]
        for path in sorted(paths, key=lambda path: not path.endswith(".dir")):
            oid = str(cache.remote_id(path))
            with suppress(FileNotFoundError):  # removed by a colleague's garbage collection
                is_intact = self._read_listing(path, oid) if path.endswith(".dir") else self._digest(path) == oid
                self.count += 1
                if is_intact:
                    self.intact.add(oid)
                else:
                    self._remove_listings({oid})
                    self.corrupt.append(path)
                    self._remove(
                        path, "corrupt, removed; the next run here pushes it if its cache has it, else the next run that makes it does"
                    )

    def incomplete_listings(self) -> None:
        """Remove the listings of objects that are missing."""
        named = {oid for oids in self.listings.values() for oid in oids} - self.intact
        self._remove_listings({oid for oid in named if not self.odb.exists(oid)})

    def _read_listing(self, path: str, oid: str) -> bool:
        content = self.odb.fs.fs.cat_file(path)
        self.size += len(content)
        files = cache.parse_listing(content, oid)
        if files is not None:
            self.listings[path] = set(files.values())
        return files is not None

    def _digest(self, path: str) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        with self.odb.fs.open(path, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
                self.size += len(block)
        return digest.hexdigest()

    def _remove_listings(self, oids: set[str]) -> None:
        for path in [path for path, named in self.listings.items() if not named.isdisjoint(oids)]:
            del self.listings[path]
            if self.odb.fs.exists(path):
                self.incomplete.append(path)
                self._remove(path, "lists corrupt or missing objects, removed with them")

    def _remove(self, path: str, message: str) -> None:
        """Remove a file, once nothing here says any longer that the remote has it."""
        from dvc_data.hashfile.db import get_index

        PUSHED.unlink(missing_ok=True)
        get_index(self.odb).clear()
        with suppress(FileNotFoundError):
            self.odb.fs.remove(path)
        _say(path, message)


def _say(path: object, message: str) -> None:
    print(f"retemper: {path}: {message}", file=sys.stderr)
