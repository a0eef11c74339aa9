"""`retemper verify`: read every cached object and compare it with its digest. Corrupt ones are removed."""

import hashlib
import json
import sys
from pathlib import Path

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
    size = 0
    try:
        from dvc_data.hashfile.db import get_index

        with repository() as repo:
            remote = repo.cloud.get_remote(name)
            refuse_unmarked(remote)
            odb = remote.odb
            files = [path for path in (odb.fs.fs.find(odb.path) if odb.fs.exists(odb.path) else []) if cache.remote_id(path)]
            intact: set[str] = set()
            corrupt: list[str] = []
            for path in files:
                digest = hashlib.md5(usedforsecurity=False)
                with odb.fs.open(path, "rb") as handle:
                    while block := handle.read(1 << 20):
                        digest.update(block)
                        size += len(block)
                oid = str(cache.remote_id(path))
                if oid.removesuffix(".dir") == digest.hexdigest():
                    intact.add(oid)
                else:
                    corrupt.append(path)
                    _say(path, "corrupt, removed; the next run here pushes it if its cache has it, else the next run that makes it does")
                    odb.fs.remove(path)
            incomplete = [
                path
                for path in files
                if path.endswith(".dir") and path not in corrupt
                if any(not odb.exists(oid) for oid in {entry["md5"] for entry in json.loads(odb.fs.fs.cat_file(path))} - intact)
            ]
            for path in incomplete:
                _say(path, "lists corrupt or missing objects, removed with them")
                odb.fs.remove(path)
            if corrupt or incomplete:
                get_index(odb).clear()
                PUSHED.unlink(missing_ok=True)
    except Exception as error:  # from DVC, or any library that talks to remotes
        raise UserError(f"remote {name}: cannot be read: {reason(name, error)}") from None
    suffix = f", {counted(len(incomplete), 'listings of missing objects')}" if incomplete else ""
    print(f"remote {name}: {counted(len(files), 'objects')}, {size / 1e6:,.1f} MB read, {len(corrupt)} corrupt{suffix}")
    return 1 if corrupt or incomplete else 0


def _say(path: object, message: str) -> None:
    print(f"retemper: {path}: {message}", file=sys.stderr)
