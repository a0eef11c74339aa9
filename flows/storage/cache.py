"""Check the cache by content. DVC trusts any read-only file in it; here, a file that was touched since it was hashed is hashed again.

DVC 3 assumes that a file of mode 0444 in the cache is intact, and that a file it has checked out or downloaded has the wanted
digest, without reading either. `patches.check_by_content` changes the first for this process. An object whose inode, size, or
modification time differs from the remembered one is read. If it is corrupt, it is removed and counts as missing, so it is
fetched or computed again, never used. `restore_from_workspace` and `verify` read the bytes themselves.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.repository.lock import out_digests
from tasks.core.errors import DiskError
from tasks.core.params.safe_yaml import refuse_bomb

Warn = Callable[[str], None]
OBJECT = re.compile(r"[0-9a-f]{32}(\.dir)?")


def uncached(status: Mapping[str, Iterable[Any]]) -> list[str]:
    """The stages of a `read_status` that have outs missing from the cache."""
    return [
        name
        for name, changes in status.items()
        if any(isinstance(change, dict) and "not in cache" in change.get("changed outs", {}).values() for change in changes)
    ]


def restore_from_workspace(repo: Any, names: Iterable[str], warn: Warn) -> bool:
    """Restore outs that are missing from the cache from workspace files with the right bytes. Return whether any file was checked.

    A workspace file that DVC wrongly takes for intact (it was checked out from a corrupt cache) is removed. So is a symbolic link to an
    object that the cache has lost: DVC cannot read an out with one.
    """
    wanted = set(names)
    checked = False
    with repo.lock:
        for node in repo.index.stages:
            for out in node.outs if node.addressing in wanted else []:
                _unlink_dangling(Path(out.fs_path))
                if out.hash_info and out.exists and out.changed_cache() and not out.changed_checksum():
                    checked = True
                    for path, oid in _files(out):
                        _repair_file(repo.cache.local, out.fs, path, oid=oid, warn=warn)
    return checked


def verify(root: Path, on_corrupt: Callable[[Path], None]) -> tuple[int, int]:
    """Read every object in a cache folder (`files/md5`); return the numbers of objects and bytes. `on_corrupt` gets each corrupt one."""
    count = size = 0
    for path in objects(root):
        try:
            size += path.stat().st_size
            is_corrupt = file_md5(path) != object_id(path).removesuffix(".dir")
        except FileNotFoundError:  # removed by someone's garbage collection
            continue
        count += 1
        if is_corrupt:
            on_corrupt(path)
    return count, size


def objects(root: Path) -> Iterator[Path]:
    """Every object in a cache folder, ordered by digest. Files that are not named like one (unfinished copies) are skipped."""
    for folder in sorted(root.glob("[0-9a-f][0-9a-f]")):
        yield from (path for path in sorted(folder.iterdir()) if OBJECT.fullmatch(object_id(path)) and path.is_file())


def remote_id(path: str) -> str | None:
    """The digest of the object at a remote's path; None if it is not named like an object (a partial upload, another program's file)."""
    folder, _, name = path.rpartition("/")
    found = folder.rpartition("/")[2] + name
    return found if OBJECT.fullmatch(found) else None


def object_id(path: Path) -> str:
    """The digest of the object at a path in the cache, including the `.dir` of a folder's listing."""
    return path.parent.name + path.name


def object_path(root: Path, oid: str) -> Path:
    return root / oid[:2] / oid[2:]


def file_md5(path: Path) -> str:
    """The MD5 of a file's bytes, in hexadecimal, by which DVC addresses it."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def intact_path(root: Path, oid: str) -> Path | None:
    """The path of the object `oid`; None if it is missing or corrupt. Reads the whole file."""
    path = object_path(root, oid)
    try:
        return path if oid and file_md5(path) == oid.removesuffix(".dir") else None
    except OSError:
        return None


def is_object(data: bytes, oid: str) -> bool:
    """Whether bytes have the digest `oid`."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == oid.removesuffix(".dir")


def listing(root: Path, oid: str) -> dict[str, str]:
    """The files of a folder (`….dir`), as digests by relative name. Empty if its listing is missing from the cache or corrupt."""
    return read_listing(root, oid) or {}


def read_listing(root: Path, oid: str) -> dict[str, str] | None:
    """Like `listing`, but None if the listing is missing or corrupt, to tell that from an empty folder."""
    try:
        return parse_listing(object_path(root, oid).read_bytes(), oid) if oid.endswith(".dir") else None
    except OSError:
        return None


def parse_listing(text: bytes, oid: str) -> dict[str, str] | None:
    """Parse the bytes of a folder's listing into digests by relative name. None if their digest is not `oid`."""
    if not is_object(text, oid):
        return None
    return {entry["relpath"]: entry["md5"] for entry in json.loads(text)}


def contents(root: Path, oid: str) -> set[str]:
    """The digests of an out and of its files. Empty if the cache lacks any of them, because the others are useless then."""
    files = read_listing(root, oid) if oid.endswith(".dir") else {}
    oids = {oid, *(files or {}).values()}
    return oids if files is not None and all(object_path(root, member).is_file() for member in oids) else set()


def outs(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The digest and path of every out in an entry of dvc.lock or of the run cache."""
    for out in entry.get("outs") or []:
        if out.get("md5"):
            yield str(out["md5"]), str(out["path"])


def recorded_runs(root: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every entry of the run cache in a cache, with its file. Truncated entries are left out: fetched ones are not flushed to the disk."""
    for path in sorted((root / "runs").glob("*/*/*")):
        try:
            text = path.read_text(encoding="utf-8")
            refuse_bomb(text)
            entry = YAML(typ="safe").load(text)
        except (OSError, YAMLError, ValueError):  # ValueError: half of a character, or a date that does not exist
            continue
        if isinstance(entry, dict) and _are_outs(entry.get("outs")):
            yield path, entry


def _are_outs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(out, dict) and "path" in out for out in value)


def folder_digest(files: Mapping[str, str]) -> str:
    """DVC's digest of a folder with these files (name: digest): that of its listing as JSON, sorted by name."""
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"


def digest_of(digests: Mapping[str, str], path: str, objects: Path) -> str:
    """The digest of `path` by those of outs: of an out, or of a part of one by its listing in the cache folder `objects`; else empty."""
    return digests[path] if path in digests else part_digest(files_at(digests, path, objects))


def files_at(digests: Mapping[str, str], path: str, objects: Path) -> dict[str, str]:
    """The digests of the files of an out, or of a part of one, by their names below `path` (a file's own: empty)."""
    out = out_with(digests, path)
    oid = digests.get(out, "")
    return part_of(listing(objects, oid) if oid.endswith(".dir") else {"": oid} if oid else {}, path.removeprefix(out).strip("/"))


def out_with(digests: Mapping[str, str], path: str) -> str:
    """The out that is or contains `path`; empty if there is none."""
    return next((out for out in digests if path == out or path.startswith(f"{out}/")), "")


def part_of(files: Mapping[str, str], below: str) -> dict[str, str]:
    """The files of a listing that are `below` or in it, by their names there (a file's own: empty)."""
    return {
        name.removeprefix(below).lstrip("/"): digest for name, digest in files.items() if not below or f"{name}/".startswith(f"{below}/")
    }


def part_digest(files: Mapping[str, str]) -> str:
    """The digest of a part, given by `part_of`; empty if it is nowhere."""
    return files.get("") or (folder_digest(files) if files else "")


def _files(out: Any) -> Iterator[tuple[Path, str]]:
    """The workspace files of an out, and the digests they should have. If the listing is corrupt, it is rebuilt from DVC's memory."""
    obj = out.get_obj()
    if obj is None and out.hash_info.isdir:
        from dvc_data.hashfile.build import build

        _, _, obj = build(out.cache, out.fs_path, out.fs, out.hash_info.name, ignore=out.dvcignore, dry_run=True)
        if obj.hash_info == out.hash_info:
            out.cache.add(obj.path, obj.fs, obj.oid, check_exists=False)
    if obj is None or not out.hash_info.isdir:
        yield Path(out.fs_path), out.hash_info.value
        return
    for parts, _, hash_info in obj:
        yield Path(out.fs_path, *parts), hash_info.value


def _unlink_dangling(out: Path) -> None:
    """Remove each symbolic link in an out, a file or a folder, whose target does not exist."""
    for path in (out, *out.rglob("*")):
        if path.is_symlink() and not path.exists():
            path.unlink()


def _repair_file(cache_: Any, fs: Any, path: Path, *, oid: str, warn: Warn) -> None:
    if not path.exists():
        return
    try:
        cache_.check(oid)
        is_intact = True
    except Exception:
        is_intact = False
    _unlink_dangling(path)  # the check removes a corrupt object
    if path.exists() and file_md5(path) != oid:
        warn(f"{path}: its content is not what DVC recorded; it will be made again")
        path.unlink()
    elif path.exists() and not is_intact:
        warn(f"{path}: its copy in the cache was corrupt or missing; restored from this file")
        cache_.add(str(path), fs, oid)


def cache_folder() -> Path:
    """The cache of this clone, without loading DVC's graph."""
    from dvc.config import Config

    folder = Config.from_cwd()["cache"].get("dir")
    return Path(folder) if folder else Path(".dvc/cache")


def refuse_read_only(folder: Path, *, removing: bool = False) -> None:
    """DiskError if this user cannot write to the cache `folder`. Without this check, DVC would notice only after computing a stage, and a
    command that removes objects (`removing`) only when it is half done.
    """
    purpose, alternative = "where this run would store what it computes", "use a cache of your own (dvc cache dir --local .dvc/cache)"
    if removing:
        purpose, alternative = "from which this command removes; nothing was changed", "have its owner do it"
    if place := unwritable_folder(folder):
        raise DiskError(
            f"{place}: no permission to write to the cache, {purpose}; give it to your group "
            f"(chgrp -R TEAM; chmod -R g+rwX; where it is mounted read-only, mount it for writing), or {alternative}, and run again"
        )


def unwritable_folder(folder: Path) -> Path | None:
    """The first folder of the cache that this user cannot write to, or None."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    places = (existing, folder / "files/md5", folder / "runs")
    return next((place for place in places if place.exists() and not os.access(place, os.W_OK | os.X_OK)), None)


def copy_cached(project: Path, path: str, to: Path, *, lock: Mapping[str, Mapping[str, Any]]) -> bool:
    """Copy an out of a dvc.lock, or a path inside one, from the project's cache to `to`, without waiting seconds for DVC to start.

    Return False, with nothing left at `to`, if the cache lacks a file of it or has a corrupt one.
    """
    root = cache_of(project) / "files" / "md5"
    wanted = files_at(out_digests(lock), path, root)
    try:
        for name, digest in wanted.items():
            place = to / name if name else to
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(object_path(root, digest), place)
            if file_md5(place) != digest:
                raise FileNotFoundError(place)
    except FileNotFoundError:
        shutil.rmtree(to, ignore_errors=True)
        to.unlink(missing_ok=True)
        return False
    return bool(wanted)


def cache_of(project: Path) -> Path:
    """The cache of the project in the folder `project`, without loading DVC's graph."""
    from dvc.config import Config

    folder = Config(dvc_dir=str(project / ".dvc"))["cache"].get("dir")
    return Path(folder) if folder else project / ".dvc/cache"
