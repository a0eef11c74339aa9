"""The outs of a commit's dvc.lock: copied from the cache or the remote and checked against their digests, or reported as lost."""

import json
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.process.processes import environment
from flows.repository.lock import Lock, out_digests
from flows.repository.project import repository
from flows.storage.cache import (
    cache_of,
    copy_cached,
    file_md5,
    files_at,
    intact_path,
    object_path,
    out_with,
    parse_listing,
    part_of,
    read_listing,
)
from flows.storage.remote import is_there, refuse_unmarked
from flows.team.sync import REMOTE, remote_name
from tasks.core.errors import UserError, redacted
from tasks.core.files import delete


class Lost(UserError):
    """Neither the cache nor the remote has an out. A remote that is unavailable raises UserError, because it may have the out."""


def get(path: str, out: Path, *, project: Path, commit: str, lock: Lock) -> None:
    """Copy an out of `commit`, or a path in one, to `out`, completely or not at all. `lock`: the commit's dvc.lock.

    Raises Lost if it is neither in the cache nor on the remote, or corrupt there, and UserError if the remote is unavailable or fails.
    """
    temporary, where = out.with_name(f".{out.name}.partial"), f"{path} of {commit[:12]}"
    delete(temporary)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not copy_cached(project, path, temporary, lock=lock):
        remove_corrupt(cache_of(project) / "files/md5", path, lock)
        arguments = [str(project), path, "--rev", commit]
        try:
            _dvc("get", *arguments, "--out", str(temporary), "--quiet")
            hashes = json.loads(_dvc("list", *arguments, "--recursive", "--show-hash", "--json"))
        except ValueError as error:
            delete(temporary)
            reason = f" ({error})" if str(error) else ""
            if not _is_recorded(cache_of(project) / "files/md5", path, lock):
                raise Lost(f"{where}: no such file was recorded") from None
            try:
                refuse_lost([path], project=project, lock=lock)
            except Lost:
                raise Lost(f"{where}: neither in the cache nor on the remote{reason}") from None
            raise UserError(f"{where}: not in the cache, and could not be fetched from the remote{reason}") from None
        for entry in hashes:  # DVC does not check what it downloads
            if entry["md5"] and file_md5(temporary / entry["path"] if temporary.is_dir() else temporary) != entry["md5"]:
                delete(temporary)
                raise Lost(f"{where}: {entry['path']} is corrupt on the remote; push it again from a machine that has it (dvc push)")
    delete(out)
    temporary.rename(out)


def remove_corrupt(root: Path, path: str, lock: Lock) -> None:
    """Remove an out's objects whose content does not match their digest from the cache at `root`: DVC would copy them unchecked."""
    for digest in set(objects(root, path, lock)):
        if not intact_path(root, digest):
            with suppress(PermissionError):
                object_path(root, digest).unlink(missing_ok=True)


def refuse_lost(paths: Iterable[str], *, project: Path, lock: Lock) -> None:
    """Raise Lost for an out, or a path in one, that neither the cache nor the remote has. Only listings are read, and nothing is kept.

    Raises UserError if the remote is unavailable.
    """
    root, paths = cache_of(project) / "files/md5", list(paths)
    missing = {digest: path for path in paths for digest in objects(root, path, lock) if not object_path(root, digest).exists()}
    if not missing:
        return
    kind: type[UserError] = UserError
    try:
        with repository(project) as repo:
            kind = UserError if remote_name(repo) else Lost  # without a remote, nobody else can have it
            refuse_unmarked(repo.cloud.get_remote())
            remote = repo.cloud.get_remote_odb()
            lost = next((path for digest, path in missing.items() if not is_there(remote.fs, remote.oid_to_path(digest))), None)
            lost = lost or next((path for path in paths if _lacks_files(remote, root, path, lock=lock)), None)
    except Exception as error:  # whatever the library of a remote raises
        path = next(iter(missing.values()))
        raise kind(f"{path}: not in the cache, and no remote can be asked for it ({redacted(' '.join(str(error).split()))})") from None
    if lost:
        raise Lost(f"{lost}: neither in the cache nor on the remote; push it from a machine that has it (dvc push)")


def _lacks_files(remote: Any, root: Path, path: str, *, lock: Lock) -> bool:
    """Whether a folder whose listing only the remote has, or a path in it, lacks files there and in the cache at `root`."""
    digests = out_digests(lock)
    out = out_with(digests, path)
    oid, below = digests.get(out, ""), path[len(out) + 1 :]
    if not oid.endswith(".dir") or object_path(root, oid).exists():
        return False
    with remote.fs.open(remote.oid_to_path(oid), "rb") as handle:
        listing = parse_listing(handle.read(), oid)
    files = {*part_of(listing or {}, below).values()}
    if listing is None or (below and not files):  # corrupt, or without the path
        return True
    return any(not object_path(root, file).exists() and not is_there(remote.fs, remote.oid_to_path(file)) for file in files)


def _is_recorded(root: Path, path: str, lock: Lock) -> bool:
    """Whether the lock has the out, and its listing in the cache at `root` the path in it. True if the cache lacks the listing."""
    digests = out_digests(lock)
    out = out_with(digests, path)
    if path == out or not out:
        return bool(out)
    listing = read_listing(root, digests[out]) if digests[out].endswith(".dir") else {}
    return listing is None or bool(part_of(listing, path[len(out) + 1 :]))


def objects(root: Path, path: str, lock: Lock) -> list[str]:
    """Digests of the objects that an out, or a path in one, consists of, from the lock and the out's listing in the cache at `root`."""
    digests = out_digests(lock)
    own = digests.get(out_with(digests, path))
    return [own, *files_at(digests, path, root).values()] if own else []


def _dvc(*words: str) -> str:
    """Run a command of DVC; return what it prints. If it fails, raise ValueError with DVC's error, which may be empty."""
    process = subprocess.run([*REMOTE, *words], env=environment(), capture_output=True, text=True, check=False)
    if process.returncode:
        raise ValueError(next((line.removeprefix("ERROR: ") for line in process.stderr.splitlines() if line.startswith("ERROR")), ""))
    return process.stdout
