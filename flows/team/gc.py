"""`retemper gc`: removes from the cache, and on request from a remote, what no branch, tag, experiment or working tree needs."""

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.process import locks
from flows.process.display import megabytes, text_table
from flows.repository.git import git
from flows.repository.leftovers import OF_DVC, unfinished_copies
from flows.repository.lock import Lock, dvc_files, locks_of_references, parse_dvc_file, read_graph, read_lock, stages_in_graph, worktrees
from flows.repository.project import lock_is_readable, repository
from flows.repository.worktree import trees_of_others
from flows.storage.cache import object_id, object_path, objects, outs, parse_listing, read_listing, refuse_read_only, remote_id
from flows.storage.cache import recorded_runs as recorded
from flows.storage.dvc import PROJECTS, is_in_own_tree, objects_of, project_of
from flows.storage.remote import refuse_unmarked
from flows.storage.small_files import Place, copy
from flows.team import remotes as team
from flows.team.sync import reason, remote_name, unsent
from tasks.core.errors import UserError
from tasks.core.plurals import counted

DAYS = 7.0
Load = Callable[[str], Mapping[str, str] | None]  # from a folder's listing to the digests of its files by name; None if it is lost


@dataclass
class Needs:
    """Digests to keep, and for what none can be kept: references without a dvc.lock, and folders without a listing."""

    oids: set[str] = field(default_factory=set)
    trees: dict[str, Path] = field(default_factory=dict)  # for digests that a working tree's graph needs now: that tree
    names: dict[str, str] = field(default_factory=dict)  # digest to `stage: out`, for everything seen, needed or not
    without: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # `stage: out` of folders whose listings are lost

    def add(self, lock: Lock) -> None:
        for stage, entry in lock.items():
            self.oids |= {oid for oid, _ in outs(entry)}
            self.names |= {oid: f"{stage}: {path}" for oid, path in outs(entry)}


@dataclass(frozen=True)
class Garbage:
    """What can be removed: objects with their sizes in bytes, and run-cache entries with outs among them."""

    objects: Mapping[Any, int]
    runs: tuple[Any, ...]


def collect(dry: bool, remote: str | None, tell: Callable[[str], None], *, days: float = DAYS, keep_unsent: bool = True) -> None:
    """Remove what nothing needs from the cache and, if it is older than `days`, from `remote`. With `dry`, only report it.

    `keep_unsent`: keep results that are yet to be sent to the project's remote. Raises UserError while a run is in progress in any project
    that uses this cache, if another one or another tree begins to use it meanwhile, or if it cannot be known what others need.
    """
    if not days >= 0:  # NaN neither
        raise UserError(f"--days: found {days:g}, expected 0 or more")
    with repository() as repo, ExitStack() as stack:
        root = Path(repo.cache.local_cache_dir)
        if not dry:
            refuse_read_only(root, removing=True)
        projects, trees = users_of(root)
        stack.enter_context(locks.hold_run_locks(trees))
        locks.repair()
        stack.enter_context(repo.lock)
        if remote:
            _fetch_references(tell)
        for folder in trees_of_others(trees):
            place = shlex.quote(str(folder))
            tell(f"kept: what {place} needs; if the command of another machine or container that made it has ended: rm -rf {place}")
        needs = find_needs(projects, trees)
        for name in needs.without:
            tell(f"{name} has no dvc.lock in git, so nothing is kept for it")
        needed = with_contents(needs, _listings(repo, root / "files" / "md5", needs))  # refuses before anything is removed
        if needs.unread:
            examples = ", ".join(needs.unread[:3]) + (", ..." if needs.unread[3:] else "")
            folders = "1 folder of other commits is" if len(needs.unread) == 1 else f"{len(needs.unread)} folders of other commits are"
            tell(f"{folders} neither here nor on the remote, so no file is kept for them: {examples}")
        if remote:
            _collect_remote(repo, remote, root, needs=needs, dry=dry, tell=tell, days=days)
        if keep_unsent:
            needed |= _unsent(root, trees, needed, tell=tell)
        garbage = Garbage(
            {path: path.stat().st_size for path in objects(root / "files" / "md5") if object_id(path) not in needed},
            tuple(path for path, entry in recorded_runs(root, needs) if any(oid not in needed for oid, _ in outs(entry))),
        )
        _print_garbage(
            f"cache {root}", garbage, {path: needs.names.get(object_id(path), "") for path in garbage.objects}, dry=dry, tell=tell
        )
        if not dry:
            projects_now, trees_now = users_of(root)
            if projects_now != projects or not set(trees_now) <= set(trees):
                other = "project" if projects_now != projects else "working tree"
                raise UserError(f"{root}: another {other} began to use it meanwhile, so nothing was removed from it; run retemper gc again")
            for path in unfinished_copies(root):  # no run is in progress, so nobody is writing them
                path.unlink(missing_ok=True)
            for path in [*garbage.runs, *sorted(garbage.objects, key=lambda path: path.suffix != ".dir")]:
                path.unlink(missing_ok=True)
            for folder in {run.parent for run in garbage.runs}:
                with suppress(OSError):  # DVC fails on an empty folder of runs; one that is not empty stays
                    folder.rmdir()


def _unsent(root: Path, trees: Iterable[Path], needed: set[str], *, tell: Callable[[str], None]) -> set[str]:
    """Digests of objects that nothing needs but the next push sends."""
    projects = dict.fromkeys(map(project_of, trees))
    oids = objects_of(root, [entry for project in projects for entry in unsent(project, root)]) - needed
    if oids:
        size = megabytes(sum(object_path(root / "files" / "md5", oid).stat().st_size for oid in oids))
        tell(f"kept: {counted(len(oids), 'objects')}, {size} MB, not pushed yet: retemper run pushes them, --unsent removes them")
    return oids


def users_of(root: Path) -> tuple[list[Path], list[Path]]:
    """The projects that use a cache, this one first, and all their working trees. Raises UserError if they cannot be known."""
    shared = (root / PROJECTS).is_dir()
    projects = [Path.cwd(), *(other for other in team.registered(root) if shared and other != Path.cwd())]
    if not shared and not is_in_own_tree(root):
        raise UserError(
            f"{root}: this cache is outside the project, and who else uses it is unknown; "
            f"run retemper cache share {root} in each project that does"
        )
    trees = list(dict.fromkeys(tree for project in projects for tree in worktrees(project, all_known=True)))
    assert Path.cwd() in trees, f"{Path.cwd()} is not in {trees}, so what it needs would be removed"
    return projects, trees


def find_needs(projects: Iterable[Path], trees: Iterable[Path]) -> Needs:
    """What the references of `projects` and the working trees need: the outs of every dvc.lock and .dvc file.

    After a killed run, the dvc.lock from before it counts too. Raises UserError if the kill truncated dvc.lock.
    """
    needs = Needs()
    for project in projects:
        for name, locks_there in locks_of_references(project):
            for lock in locks_there:
                needs.add(lock)
            if not locks_there and name.startswith(("refs/heads/", "refs/tags/", "refs/remotes/")) and not name.endswith("/HEAD"):
                needs.without.append(name)
    for tree in trees:
        lock_file = tree / locks.DVC_LOCK
        if lock_file.exists() and not (lock_is_readable(lock_file) and lock_file.read_bytes().endswith(b"\n")):
            raise UserError(f"{lock_file}: truncated, so what it needs is unknown; run retemper run there to fix it")
        lock = read_lock(lock_file)
        needs.add(lock)
        needs.trees |= {oid: tree for entry in _of_graph(lock, tree).values() for oid, _ in outs(entry)}
        needs.add(read_lock(tree / locks.BEFORE))
        for extra_lock in tree.glob(".retemper/extra/*/*.lock"):  # what the systems need on further data sets (flows.evaluating.extra)
            needs.add(read_lock(extra_lock))
        for file in dvc_files(tree):
            if file != lock_file:
                needs.add(parse_dvc_file(file.read_text(encoding="utf-8"), str(file)))
    return needs


def with_contents(needs: Needs, load: Load) -> set[str]:
    """The needed digests, including those of the files in needed folders. Names of files and lost listings are added to `needs`."""
    needed = set(needs.oids)
    for oid in [oid for oid in needs.names if oid.endswith(".dir")]:
        files = load(oid)
        if files is None and oid in needs.oids:
            needs.unread.append(needs.names[oid])
        for name, inner in (files or {}).items():
            needs.names.setdefault(inner, f"{needs.names[oid]}/{name}")
            if oid in needs.oids:
                needed.add(inner)
    return needed


def recorded_runs(root: Path, needs: Needs) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every entry of a run cache. The names of its outs are added to `needs`."""
    for path, entry in recorded(root):
        for oid, out in outs(entry):
            needs.names.setdefault(oid, f"an earlier {out}")
        yield path, entry


def _of_graph(lock: Lock, tree: Path) -> Lock:
    """The entries that the graph of a working tree still has; all of them if the graph cannot be read."""
    try:
        return stages_in_graph(lock, *read_graph(tree))
    except (OSError, ValueError, UserError):
        return lock


def _listings(repo: Any, cache: Path, needs: Needs) -> Load:
    """A function that reads listings from the cache, and needed ones that are missing or corrupt there from the project's remote.

    It raises UserError if no copy is intact and a working tree needs the listing, or the cache has a corrupt one. Listings of other commits
    may be lost, since they may never have been here.
    """
    remote = remote_name(repo)

    def from_remote(oid: str) -> dict[str, str] | None:
        nonlocal remote
        try:
            odb = repo.cloud.get_remote(remote).odb if remote else None
            return parse_listing(odb.fs.cat_file(odb.oid_to_path(oid)), oid) if odb else None
        except FileNotFoundError:
            return None
        except Exception:  # from DVC, or any library that talks to remotes: it is not asked again
            remote = None
            return None

    def load(oid: str) -> Mapping[str, str] | None:
        files = read_listing(cache, oid)
        if files is None and oid in needs.oids:
            files = from_remote(oid)
        if files is None and (oid in needs.trees or (oid in needs.oids and object_path(cache, oid).exists())):
            tree, stage = needs.trees.get(oid), needs.names[oid].partition(":")[0]
            fix = f"run retemper run {stage} in {tree}" if tree else "run retemper verify, then dvc fetch --all-commits"
            raise UserError(f"{needs.names[oid]}: its listing {oid} is missing or corrupt, so which files it needs is unknown; {fix}")
        return files

    return load


def _collect_remote(repo: Any, name: str, root: Path, *, needs: Needs, dry: bool, tell: Callable[[str], None], days: float) -> None:
    try:
        remote = repo.cloud.get_remote(name)
        refuse_unmarked(remote)
        runs = remote_runs(remote, root, needs)
        fs, base = remote.fs, remote.odb.path
        sizes = _sizes(fs, base) if fs.exists(base) else {}
    except Exception as error:  # from DVC, or any library that talks to remotes
        raise UserError(f"remote {name}: cannot be read, so nothing was removed: {reason(name, error)}") from None
    places = {oid: path for path in sizes if (oid := remote_id(path))}

    def listed(oid: str) -> Mapping[str, str]:
        files = parse_listing(fs.fs.cat_file(places[oid]), oid)
        if files is None:
            raise UserError(
                f"remote {name}: {places[oid]}: found a corrupt listing, so which files it needs is unknown, and nothing was removed; "
                f"run retemper verify --remote {name}"
            )
        return files

    def load(oid: str) -> Mapping[str, str] | None:
        files = read_listing(root / "files" / "md5", oid)
        return listed(oid) if files is None and oid in places and oid in needs.oids else files

    needed = with_contents(needs, load)
    unneeded = {oid: path for oid, path in places.items() if oid not in needed}
    young = {oid for oid, path in unneeded.items() if time.time() - _changed(fs, path) < days * 86400}
    for oid in [oid for oid in young if oid.endswith(".dir")]:  # the files of a young folder may be older than it
        young |= set(listed(oid).values())
    garbage = {oid: sizes[path] for oid, path in unneeded.items() if oid not in young}
    needed |= young  # their runs stay with them
    if young:
        tell(f"remote {name}: kept {len(young)} more object{'s' * (len(young) != 1)} that nothing in git needs: younger than {days:g} days")
    stale = [place for place, entry in runs.items() if any(oid not in needed for oid, _ in outs(entry))]
    _print_garbage(f"remote {name}", Garbage(garbage, tuple(stale)), {oid: needs.names.get(oid, "") for oid in garbage}, dry=dry, tell=tell)
    unfinished = [path for path in _unfinished(fs, remote.path, sizes) if time.time() - _changed(fs, path) >= max(days, 1) * 86400]
    if unfinished:
        tell(f"remote {name}: {'would remove' if dry else 'removed'} {len(unfinished)} unfinished copies that failed pushes left")
    if not dry:
        from dvc_data.hashfile.db import get_index

        for paths in (
            unfinished,
            stale,
            [places[oid] for oid in garbage if oid.endswith(".dir")],
            [places[oid] for oid in garbage if not oid.endswith(".dir")],
        ):
            if paths:
                fs.remove(paths)
        get_index(remote.odb).clear()


def remote_runs(remote: Any, root: Path, needs: Needs) -> dict[str, Mapping[str, Any]]:
    """Every entry of a remote's run cache, by its path there. Those that the cache `root` lacks, or has truncated, are not added to it.

    The names of outs, of entries in the cache too, are added to `needs`.
    """
    source = Place(remote.fs, remote.fs.join(remote.path, "runs"))
    names = source.names()
    with TemporaryDirectory() as folder:
        entries = {path.relative_to(root / "runs").as_posix(): entry for path, entry in recorded_runs(root, needs)}
        copied = Path(folder, "runs")
        copy(source, Place.on_disk(copied), sorted(names - entries.keys()))
        entries |= {path.relative_to(copied).as_posix(): entry for path, entry in recorded_runs(copied.parent, needs)}
    return {remote.fs.join(source.folder, *name.split("/")): entries[name] for name in names & entries.keys()}


def _unfinished(fs: Any, place: str, paths: Iterable[str]) -> list[str]:
    """Partly written files of a remote, from pushes that failed or are in progress."""
    if fs.protocol == "local":
        return list(map(str, unfinished_copies(Path(place))))
    return [path for path in paths if OF_DVC.fullmatch(path.rpartition("/")[2])]


def _sizes(fs: Any, folder: str) -> dict[str, int]:
    """Size in bytes of every file below a remote's folder, by path."""
    if fs.protocol == "local":
        return {path: Path(path).stat().st_size for path in fs.find(folder)}
    return {path: int(info["size"] or 0) for path, info in fs.fs.find(folder, detail=True).items()}


def _changed(fs: Any, path: str) -> float:
    """When an object reached a remote, in seconds since 1970. Now, if the remote does not say: colleagues push before they commit."""
    info = fs.fs.info(path)
    when = next((info[key] for key in ("mtime", "LastModified", "last_modified", "updated") if info.get(key)), None)
    if isinstance(when, datetime):
        return when.timestamp()
    return float(when) if isinstance(when, int | float) else time.time()


def _fetch_references(tell: Callable[[str], None]) -> None:
    """Fetch everything that colleagues have pushed to git, so that what they need is known."""
    names = git("remote").splitlines()
    for name in names:
        kinds = {"heads": f"refs/remotes/{name}", "tags": f"refs/retemper/{name}/tags", "exps": f"refs/retemper/{name}/exps"}
        try:
            git("fetch", "--quiet", "--prune", "--no-tags", name, *(f"+refs/{kind}/*:{place}/*" for kind, place in kinds.items()))
        except UserError as error:
            raise UserError(f"git remote {name}: {error}; what colleagues need is unknown, so nothing was removed") from None
    if not names:
        tell("no git remote: only this clone's branches, tags and experiments are known")


def _print_garbage(where: str, garbage: Garbage, names: Mapping[Any, str], *, dry: bool, tell: Callable[[str], None]) -> None:
    groups: dict[str, list[int]] = defaultdict(list)
    for key, size in garbage.objects.items():
        groups["/".join(names[key].split("/")[:3]) or "(unknown)"].append(size)
    rows = [[name, str(len(sizes)), megabytes(sum(sizes))] for name, sizes in sorted(groups.items())]
    if rows:
        tell(text_table(["not needed", "objects", "MB"], rows))
    verb = "would remove" if dry else "removed"
    runs = counted(len(garbage.runs), "runs").replace(" ", " recorded ")
    tell(f"{where}: {verb}: {counted(len(garbage.objects), 'objects')}, {megabytes(sum(garbage.objects.values()))} MB, {runs}")
