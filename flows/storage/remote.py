"""A team's remote: the mark that distinguishes it from an empty folder, and the removal of corrupt objects found in downloads."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.repository.lock import read_lock
from flows.storage.cache import listing, objects, outs, recorded_runs, remote_id
from tasks.core.errors import UserError
from tasks.core.files import read_json, write_json

MARK = "retemper.json"
NOTE = {"retemper": "remote", "note": "Do not delete this file: without it, runs assume that the remote is an unmounted share."}
HTTP = ("http", "https")
GONE = (404, 410)  # HTTP status of a file that is not there
SEEN = Path(".retemper/marked.json")  # the remotes in which this project has seen a mark
WARNING = "retemper: warning: "  # prefix of a line that the parent process shows to the user


def write_mark(fs: Any, place: str) -> None:
    """Write the mark into the remote at `place` of DVC's filesystem `fs`, writable by the group like everything in a folder remote."""
    path = fs.join(place, MARK)
    if not is_there(fs, path):
        fs.pipe_file(path, (json.dumps(NOTE, indent=2) + "\n").encode())
        if fs.protocol == "local":
            Path(path).chmod(0o664)


def refuse_unmarked(remote: Any) -> None:
    """UserError if DVC's `remote` has no mark, for example a share that is not mounted. Nothing is created then.

    A remote older than marks gets one if it holds artifacts. But not if a mark was seen there before: DVC recreates a folder that
    vanishes while it writes. HTTP remotes need no mark, because they cannot be listed.
    """
    fs, place = remote.fs, remote.path
    if fs.protocol in HTTP:
        return
    seen = set(read_json(SEEN)) if SEEN.exists() else set()
    if not is_there(fs, fs.join(place, MARK)):
        if place in seen or not _holds_artifacts(remote):
            problem = f"{place}: found no {MARK}, which every remote has"
            raise UserError(f"{problem}; mount it, or if it is new: retemper remote add {remote.name} URL")
        try:
            write_mark(fs, place)
        except OSError:  # this user may only read it
            return
    if place not in seen:
        write_json(SEEN, sorted({*seen, place}))


def is_there(fs: Any, path: str) -> bool:
    """Whether a remote's filesystem has a file. Unlike `exists`, it raises an error if the remote is unavailable or denies access."""
    try:
        fs.info(path)
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec reports any failure of HTTP as a missing file
        if fs.protocol in HTTP and cause and getattr(cause, "status", None) not in GONE:
            raise cause from None
        return False
    return True


def _holds_artifacts(remote: Any) -> bool:
    if remote.fs.protocol != "local":
        return bool(remote.fs.exists(remote.odb.path))
    return any(True for _ in objects(Path(remote.odb.path))) or any(Path(remote.path, "runs").glob("*/*/*"))


@dataclass(frozen=True)
class Download:
    """An object that was corrupt on arrival, or missing, and its path on a remote's filesystem."""

    fs: Any
    path: str
    oid: str
    missing: bool = False


@dataclass(frozen=True)
class Removed:
    """The result of removing a corrupt object from a remote. `fate` is a phrase to put after its name."""

    oid: str
    gone: bool = True
    missing: bool = False
    fate: str = "is corrupt; removed there, and the run that recomputes it pushes it again"


def remove_corrupt(remote: Any, downloads: Iterable[Download]) -> list[Removed]:
    """Remove corrupt objects from DVC's `remote`, so that whoever has or makes them pushes them again. One that only arrived corrupt stays.

    Listings of folders (`....dir`) that name a removed or missing object are removed too: DVC assumes that everything a listing names is
    there, and would never send the object again.
    """
    by_oid = {download.oid: download for download in downloads}
    removed = [_remove(download) for download in by_oid.values()]
    gone_oids = {item.oid for item in removed if item.gone}
    if gone_oids:
        from dvc_data.hashfile.db import get_index

        for path in remote.odb.fs.find(remote.odb.path):
            if path.endswith(".dir") and remote_id(path) and gone_oids.intersection(_listed(remote.odb.fs, path)):
                with suppress(OSError):
                    remote.odb.fs.remove(path)
        get_index(remote.odb).clear()
    return removed


def _remove(download: Download) -> Removed:
    try:
        with download.fs.open(download.path, "rb") as handle:
            digest = md5(iter(lambda: handle.read(1 << 20), b""))
        if digest == download.oid.removesuffix(".dir"):
            return Removed(download.oid, False, fate="arrived corrupt and is not used; the remote's copy is intact")
        download.fs.remove(download.path)
    except FileNotFoundError:  # removed by DVC itself, or by a colleague
        return Removed(download.oid, missing=download.missing)
    except OSError as error:
        reason = error.strerror or error
        fate = f"is corrupt and cannot be removed ({reason}); have someone with access run retemper verify --remote NAME"
        return Removed(download.oid, False, fate=fate)
    return Removed(download.oid)


def warnings(name: str, removed: Iterable[Removed], root: Path) -> Iterator[str]:
    """A line for each corrupt object of the remote `name`: its digest, the artifacts that it is part of, and its fate.

    Missing objects share one line. `root`: the local cache, whose recorded runs and listings tell the artifacts.
    """
    removed = list(removed)
    paths = artifacts({item.oid for item in removed}, root)
    if missing := [item.oid for item in removed if item.missing]:
        parts = [path for oid in missing for path in paths.get(oid) or [oid]]
        examples = ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")
        yield f"remote {name}: lacks files of folders that it lists ({examples}); the run that recomputes them pushes them again"
    for item in (item for item in removed if not item.missing):
        yield f"remote {name}: object {item.oid} ({', '.join(paths.get(item.oid) or ['part of no artifact known here'])}) {item.fate}"


def artifacts(oids: set[str], root: Path) -> Mapping[str, list[str]]:
    """For each object, the paths of the outs or files that it is: by dvc.lock, else by the runs recorded in the cache `root`."""
    paths: dict[str, list[str]] = {}
    for entries in (lambda: read_lock().values(), lambda: (entry for _, entry in recorded_runs(root))):
        missing = oids - set(paths)
        for entry in entries() if missing else ():
            for out in outs(entry):
                for oid, path in _parts(*out, root):
                    if oid in missing and path not in paths.setdefault(oid, []):
                        paths[oid].append(path)
    return paths


def _parts(oid: str, path: str, root: Path) -> Iterator[tuple[str, str]]:
    """An out, and if it is a folder its files: their digests and paths."""
    yield oid, path
    for name, inner in listing(root / "files" / "md5", oid).items():
        yield inner, f"{path}/{name}"


def _listed(fs: Any, path: str) -> set[str]:
    try:
        return {str(entry["md5"]) for entry in json.loads(fs.cat_file(path))}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def md5(blocks: Iterable[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()
