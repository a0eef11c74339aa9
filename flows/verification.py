"""`retemper verify`: every cached object is read and compared with its digest. A damaged one is removed."""

import hashlib
import sys
from pathlib import Path

from flows import integrity, locks
from flows.plan import repository
from flows.sharing import reason
from tasks.core.errors import UserError


def verify_cache() -> int:
    """Exit status: 0 where every object of the cache was whole, else 1 (the next run mends it)."""
    with locks.only_run(), repository() as repo, repo.lock:
        root = Path(repo.cache.local_cache_dir) / "files" / "md5"

        wrong: list[Path] = []

        def remove(path: Path) -> None:
            wrong.append(path)
            _say(path)
            path.unlink(missing_ok=True)

        count, size = integrity.verify(root, remove)
    print(f"{root}: {count} objects, {size / 1e6:,.1f} MB read, {len(wrong)} damaged")
    return 1 if wrong else 0


def verify_remote(name: str) -> int:
    """The same for the objects of a remote; all of them are read, so all of them are downloaded."""
    wrong = []
    size = 0
    try:
        with repository() as repo:
            odb = repo.cloud.get_remote(name).odb
            files = [path for path in (odb.fs.fs.find(odb.path) if odb.fs.exists(odb.path) else []) if integrity.remote_id(path)]
            for path in files:
                digest = hashlib.md5(usedforsecurity=False)
                with odb.fs.open(path, "rb") as handle:
                    while block := handle.read(1 << 20):
                        digest.update(block)
                        size += len(block)
                if str(integrity.remote_id(path)).removesuffix(".dir") != digest.hexdigest():
                    wrong.append(path)
                    _say(path)
                    odb.fs.remove(path)
    except Exception as error:  # DVC's, or of any of the libraries that speak to remotes
        raise UserError(f"remote {name}: cannot be read: {reason(name, error)}") from None
    print(f"remote {name}: {len(files)} objects, {size / 1e6:,.1f} MB read, {len(wrong)} damaged")
    return 1 if wrong else 0


def _say(path: object) -> None:
    print(f"retemper: {path}: damaged, removed; the next run of who has or makes it puts it there again", file=sys.stderr)
