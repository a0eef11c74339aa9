"""Replace, in this process, parts of DVC that have no public interface. Each function says what it changes and why.

tests/flows/storage/test_patches.py fails if DVC's internals have changed.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flows.storage.cache import is_object
from flows.storage.remote import Download
from flows.storage.small_files import Place, copy
from tasks.core.errors import parse_disk_fault
from tasks.core.files import new_file

RUN = "[0-9a-f]" * 64  # glob: an entry of the run cache
_replace = setattr  # by another name: ruff forbids it with a constant name, and mypy a plain assignment


@cache
def check_by_content() -> None:
    """From now on, this process checks the local cache by content (see flows.storage.cache). Cost: a stat and a lookup per object.

    An object is read if its inode, size, or modification time has changed. ctime is ignored: linking or chmod changes it.
    """
    from dvc_data.hashfile.db import HashFileDB
    from dvc_data.hashfile.db.local import LocalHashFileDB
    from dvc_data.hashfile.state import StateNoop
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    original_check, load = LocalHashFileDB.check, vars(Tree)["load"].__func__

    def check(self: Any, oid: str, check_hash: bool = True, _info: dict[str, Any] | None = None) -> Any:
        if isinstance(self.state, StateNoop) or not check_hash:  # a folder that serves as a remote
            return original_check(self, oid, check_hash, _info)
        try:
            return HashFileDB.check(self, oid, check_hash, _info)
        except ObjectFormatError as error:  # corrupt, and now removed; `repro --pull` only knows what to do with a missing one
            raise FileNotFoundError(errno.ENOENT, str(error), self.oid_to_path(oid)) from None

    def load_checked(cls: Any, odb: Any, hash_info: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(odb, LocalHashFileDB) and hash_info.value:  # else a corrupt listing counts as present, and stays
            with suppress(FileNotFoundError):
                odb.check(hash_info.value)
        return load(cls, odb, hash_info, *args, **kwargs)

    _replace(LocalHashFileDB, "check", check)
    _replace(Tree, "load", classmethod(load_checked))


@cache
def durably() -> None:
    """From now on, files that this process writes are either complete or missing after a power cut.

    DVC writes dvc.lock in place, so a kill or a full disk truncates it. It is now replaced by one rename, like the run cache's entries.
    An object is flushed before it becomes read-only, which is DVC's mark that it need not be read again. Cost: one fsync per new object. If
    a disk has no reflinks, DVC creates each object empty before it copies it; this now happens under a temporary name. A failed copy, for
    example into a folder remote, is removed. DVC leaves it, and a full disk stays full.
    Only entries of the run cache that have their digest are read: DVC fails on an empty folder, and reads entries cut between two lines.
    """
    from dvc.stage.cache import StageCache, _get_cache_hash, _get_stage_hash
    from dvc.utils.serialize import _common, _yaml
    from dvc_data.hashfile.db.local import LocalHashFileDB
    from dvc_objects.fs import local, system, utils

    protect: Callable[[Any, str], None] = LocalHashFileDB.protect
    reflink: Callable[[str, str], None] = system.reflink
    copyfile: Callable[..., None] = vars(local)["copyfile"]

    def copy_whole(source: str, target: str, *args: Any, **kwargs: Any) -> None:
        try:
            copyfile(source, target, *args, **kwargs)
        except BaseException:
            with suppress(OSError):
                Path(target).unlink()
            raise

    def reflink_whole(source: str, target: str) -> None:
        reflink(source, temporary := str(Path(target).with_name(utils.tmp_fname())))
        Path(temporary).replace(target)

    def dump(path: Any, data: Any, dumper: Callable[..., Any], *, fs: Any = None, **kwargs: Any) -> None:  # noqa: ARG001 - a local one
        place = Path(path).resolve()
        with new_file(place) as temporary:
            with temporary.open("w", encoding="utf-8") as stream:
                dumper(data, stream, **kwargs)
            if place.exists():
                shutil.copymode(place, temporary)

    def flush_and_protect(self: Any, path: str) -> None:
        with suppress(FileNotFoundError):
            if not self.is_protected(path):
                with Path(path).open("rb") as handle:
                    os.fsync(handle.fileno())
            protect(self, path)

    def load(self: Any, stage: Any) -> Any:
        key = _get_stage_hash(stage)
        for path in sorted(Path(self._get_cache_dir(key)).glob(RUN), key=lambda path: path.stat().st_mtime, reverse=True):
            if (entry := self._load_cache(key, path.name)) and _get_cache_hash(dict(entry)) == path.name:
                return entry
            with suppress(OSError):
                path.unlink()  # DVC would keep it, not the whole one of the next run
        return None

    _replace(StageCache, "_load", load)
    _replace(_common, "_dump_data", dump)
    _replace(_yaml, "_dump_data", dump)
    _replace(LocalHashFileDB, "protect", flush_and_protect)
    _replace(system, "reflink", reflink_whole)
    _replace(local, "copyfile", copy_whole)


def report_disk_errors() -> None:
    """From now on, if the disk is full or fails while this process puts an object into the workspace, the system's own error is raised.

    DVC concludes that the disk does not support this type of link, and reports "No possible cache link types".
    """
    from dvc_data.hashfile.checkout import Link, LinkError
    from dvc_objects.fs import generic

    link = Link.__call__

    def link_or_tell(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            link(self, *args, **kwargs)
        except LinkError as error:
            if parse_disk_fault(str(error.__cause__))[0]:
                raise error.__cause__ from None  # type: ignore[misc]
            raise

    def test_or_tell(kind: str, *places: Any) -> bool:  # source and target: a filesystem and a path each
        try:
            generic._try_links([kind], *places)
        except OSError as error:
            if parse_disk_fault(str(error))[0]:
                raise
            return False
        *_, to_fs, to_file = places
        return bool(getattr(to_fs, f"is_{kind}", lambda _: True)(to_file))

    _replace(Link, "__call__", link_or_tell)
    _replace(generic, "_test_link", test_or_tell)


def link_new_outs() -> None:
    """From now on, this process links a new out's files to the cache by the first type of `cache.type` that the disk supports.

    DVC leaves a folder's files as copies if `cache.type` has reflink or copy anywhere in it, even if the disk has no reflinks.
    """
    from dvc_data.hashfile import checkout
    from dvc_objects.fs.generic import test_links

    determine = checkout._determine_files_to_relink

    def by_the_disk(diff: Any, path: str, *places: Any) -> None:  # the out's filesystem, and the cache
        fs, store = places
        types = list(store.cache_types)
        if not {"hardlink", "symlink"}.isdisjoint(types):
            types = test_links(types, store.fs, store.path, fs, path)[:1]
        limited_store: Any = SimpleNamespace(fs=store.fs, cache_types=types, oid_to_path=store.oid_to_path)
        determine(diff, path, fs, limited_store)

    _replace(checkout, "_determine_files_to_relink", by_the_disk)


@cache
def send_listings_last() -> None:
    """From now on, this process sends files first, and the listing of a folder only if none of the folder's files failed.

    DVC goes folder by folder. If a file is in two folders and fails with the first, DVC does not count it for the second, and sends that
    listing. The next push finds the listing, assumes that the file was sent, and never sends it.
    """
    from dvc_data.hashfile import transfer

    do_transfer = transfer._do_transfer

    def files_first(src: Any, dest: Any, *args: Any, **kwargs: Any) -> Any:
        obj_ids, missing_ids = args
        listings = {obj_id for obj_id in obj_ids if obj_id.isdir}
        failed = do_transfer(src, dest, set(obj_ids) - listings, missing_ids, **kwargs)
        return failed | do_transfer(src, dest, listings, set(missing_ids) | failed, **kwargs)

    _replace(transfer, "_do_transfer", files_first)


@cache
def ignore_stored_object_list() -> None:
    """From now on, this process does not reuse DVC's stored list of objects to push or pull, but collects it again each time.

    DVC stores this list for a dvc.lock on disk, and writes it out by out. A kill in between leaves a part of it. All later pushes and
    pulls of this dvc.lock take the part for the whole: they omit the rest, and report success.
    """
    from dvc_data.index import fetch

    collect: Callable[..., Any] = vars(fetch)["collect"]

    def collect_in_memory(idxs: Any, storage: str, *args: Any, **kwargs: Any) -> Any:
        return collect(idxs, storage, *args, **kwargs | {"cache_index": None, "cache_key": None})

    _replace(fetch, "collect", collect_in_memory)


def observe_entries(callback: Callable[[str, Any], None]) -> None:
    """From now on, `callback` is called with a stage's name and entry before this process writes the entry to dvc.lock."""
    from dvc.stage import serialize

    to_lockfile = serialize.to_lockfile

    def tell(stage: Any, **kwargs: Any) -> dict[str, Any]:
        entries = dict(to_lockfile(stage, **kwargs))
        callback(*next(iter(entries.items())))
        return entries

    _replace(serialize, "to_lockfile", tell)


def verify_downloads(on_corrupt: Callable[[Download], None]) -> None:
    """From now on, this process compares each download with its digest. A corrupt one is not kept, and `on_corrupt` is called for it.

    `on_corrupt` is also called for a missing object that a folder's listing at the remote names. DVC compares only if the remote has
    `verify = true`, reports nothing, and never checks the listing of a folder (`....dir`) that it reads in place. A listing that it
    cannot read makes it stop.
    """
    from dvc.data_cloud import DataCloud
    from dvc_data.hashfile import transfer
    from dvc_data.hashfile.db import HashFileDB
    from dvc_data.hashfile.state import StateNoop
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    get_remote, add, check = DataCloud.get_remote, HashFileDB.add, HashFileDB.check
    load, do_transfer = vars(Tree)["load"].__func__, transfer._do_transfer

    def get_verified(self: Any, *args: Any, **kwargs: Any) -> Any:
        remote = get_remote(self, *args, **kwargs)
        remote.config["verify"] = True
        return remote

    def add_verified(self: Any, path: Any, fs: Any, oid: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("verify"):
            return add(self, path, fs, oid, *args, **kwargs)
        failed: set[str] = set()
        on_error = kwargs.get("on_error")
        pairs = [(path, oid)] if isinstance(path, str) else list(zip(path, oid, strict=True))
        sources = {name: source for source, name in pairs}

        def note(name: str, error: BaseException) -> None:
            failed.add(name)
            if isinstance(error, FileNotFoundError):
                on_corrupt(Download(fs, sources[name], name, missing=True))
            if on_error is None:
                raise error
            on_error(name, error)

        added = add(self, path, fs, oid, *args, **{**kwargs, "on_error": note})
        for source, name in pairs:
            if name not in failed and not self.exists(name):  # DVC found it corrupt, and silently removed it
                on_corrupt(Download(fs, source, name))
        return added

    def check_told(self: Any, oid: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return check(self, oid, *args, **kwargs)
        except ObjectFormatError:
            if isinstance(self.state, StateNoop):  # a folder that serves as a remote
                on_corrupt(Download(self.fs, self.oid_to_path(oid), oid))
            raise

    def load_verified(cls: Any, odb: Any, hash_info: Any, *args: Any, **kwargs: Any) -> Any:
        if hash_info.value and odb.fs.protocol != "memory" and isinstance(odb.state, StateNoop):
            path = odb.oid_to_path(hash_info.value)
            if not is_object(odb.fs.cat_file(path), hash_info.value):
                on_corrupt(Download(odb.fs, path, hash_info.value))
                raise ObjectFormatError(f"{path} is corrupt")
        return load(cls, odb, hash_info, *args, **kwargs)

    def transfer_readable(src: Any, dest: Any, obj_ids: Any, missing_ids: Any, **kwargs: Any) -> Any:
        places = [kwargs.get("cache_odb"), src]
        unreadable = {obj_id for obj_id in obj_ids if obj_id.isdir and transfer.find_tree_by_obj_id(places, obj_id) is None}
        failed_ids = do_transfer(src, dest, set(obj_ids) - unreadable, set(missing_ids) | unreadable, **kwargs)
        return failed_ids | unreadable

    _replace(DataCloud, "get_remote", get_verified)
    _replace(HashFileDB, "add", add_verified)
    _replace(HashFileDB, "check", check_told)
    _replace(Tree, "load", classmethod(load_verified))
    _replace(transfer, "_do_transfer", transfer_readable)


def wait_for_same_stage(folder: Path) -> None:
    """From now on, if another run (in another worktree) computes a stage from the same inputs, this process waits and takes its outs.

    A file in `folder`, named by DVC's digest of command, deps, and parameters, is locked from before the last look in the run cache until
    this process ends. A waiting process holds no DVC lock except on the stage itself, and a computing one waits for nobody.
    That last look uses only the run cache. DVC would also accept the outs in dvc.lock, because the first look gave the stage its current
    inputs: outs of earlier inputs would then be recorded as made from these.
    """
    from dvc.stage.cache import RunCacheNotFoundError, StageCache, _can_hash, _get_stage_hash
    from dvc.stage.decorators import unlocked_repo
    from dvc_data.hashfile.hash_info import HashInfo

    restore = StageCache.restore
    folder.mkdir(parents=True, exist_ok=True)

    def wait(stage: Any) -> None:
        handle = os.open(folder / _get_stage_hash(stage), os.O_RDWR | os.O_CREAT)  # stays open until we end
        fcntl.flock(handle, fcntl.LOCK_EX)

    def restore_in_turn(self: Any, stage: Any, *args: Any, **kwargs: Any) -> None:
        try:
            restore(self, stage, *args, **kwargs)
        except RunCacheNotFoundError:
            if not _can_hash(stage):
                raise
            unlocked_repo(wait)(stage)
            hash_infos = [out.hash_info for out in stage.outs]
            for out in stage.outs:
                out.hash_info = HashInfo()
            try:
                restore(self, stage, *args, **kwargs)
            finally:
                for out, info in zip(stage.outs, hash_infos, strict=True):
                    out.hash_info = info

    _replace(StageCache, "restore", restore_in_turn)


def read_project_once() -> None:
    """From now on, this process reads dvc.yaml and dvc.lock once, and looks up stages by name there.

    DVC rereads and rechecks both files for every name, twice in a pull: 9 of 15 s of CPU for the 21 stages of the default graph.
    """
    from dvc.repo.stage import StageLoad

    collect = StageLoad.collect

    def from_index(self: Any, target: str | None = None, *args: Any, **kwargs: Any) -> Any:
        matches = [stage for stage in self.repo.index.stages if stage.addressing == target]
        return matches or collect(self, target, *args, **kwargs)

    _replace(StageLoad, "collect", from_index)


def replace_unsaved() -> None:
    """From now on, a pull in this process replaces outs that `gc` removed from the cache. DVC requires `--force`, which `repro` lacks."""
    from dvc.repo import checkout

    _replace(checkout, "_check_can_delete", lambda *_: None)


def fetch_runs_on_demand(fetch: Callable[[Any, Path], bool]) -> None:
    """From now on, `--pull` in this process fetches only the runs of a stage, and only if the local cache has none for it.

    `fetch` gets the repository and the folder for runs of this command, deps, and parameters. It returns whether it put any there.
    DVC copies every run ever recorded at the remote, again for each stage.
    """
    from dvc.stage.cache import StageCache, _get_stage_hash

    load = StageCache._load

    def load_or_fetch(self: Any, stage: Any) -> Any:
        runs = load(self, stage)
        return runs if runs or not fetch(self.repo, Path(self._get_cache_dir(_get_stage_hash(stage)))) else load(self, stage)

    _replace(StageCache, "_load", load_or_fetch)
    _replace(StageCache, "pull", lambda *_, **__: [])


def compare_runs_by_listing() -> None:
    """From now on, this process compares two run caches by one listing each, and copies only missing runs.

    DVC checks each recorded run separately, and sends all of them again with every push: 10,000 round trips. A run never changes: its name
    is the digest of command, inputs, and outs. One that is shorter was truncated by a kill, and is copied again.
    """
    from dvc.stage.cache import StageCache

    transfer = StageCache.transfer

    def transfer_listed(self: Any, from_odb: Any, to_odb: Any, force: bool = True) -> Any:
        if any(odb.fs.protocol in ("http", "https") for odb in (from_odb, to_odb)):  # HTTP has no listings
            return transfer(self, from_odb, to_odb, force)
        source, target = (Place(odb.fs, odb.fs.join(odb.path, "runs")) for odb in (from_odb, to_odb))
        existing = target.sizes()
        wanted = {name for name, size in source.sizes().items() if existing.get(name, -1) < size}
        keys = set() if force else {name.rpartition("/")[0] for name in existing.keys() - wanted}  # one run is enough to restore a stage
        missing = sorted(name for name in wanted if name.rpartition("/")[0] not in keys)
        copy(source, target, missing)
        return [(key.rpartition("/")[2], value) for key, _, value in (name.rpartition("/") for name in missing)]

    _replace(StageCache, "transfer", transfer_listed)
