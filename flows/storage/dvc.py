"""DVC commands that its command line lacks, and its own `get` and `list`, which work if its memory is corrupt.

`python -m flows.storage.dvc records | push [earlier] | pull STAGES | checkout STAGES | repro STAGE | repro-pull STAGE`

These check objects from the cache by content (`flows.storage.cache`). `dvc repro --pull` fetches the remote's whole run cache,
every entry again, for every stage. Here, a stage fetches only the runs of its own command and inputs, and the objects of the
run that it restores, so a team's history costs a new clone nothing.
"""

import fnmatch
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flows.repository.lock import entry_digest, locks_of_references, read_lock, worktrees
from flows.repository.project import replace_corrupt_state, repository
from flows.repository.worktree import SCRATCH
from flows.storage import forgettings, makings
from flows.storage.cache import contents, outs, recorded_runs
from flows.storage.frozen import GRAPH, read_kept_graph
from flows.storage.outside import refuse_changed_sources
from flows.storage.patches import (
    RUN,
    check_by_content,
    compare_runs_by_listing,
    durably,
    fetch_runs_on_demand,
    ignore_stored_object_list,
    link_new_outs,
    observe_entries,
    read_project_once,
    replace_unsaved,
    report_disk_errors,
    send_listings_last,
    verify_downloads,
    wait_for_same_stage,
)
from flows.storage.remote import WARNING, Download, refuse_unmarked, remove_corrupt, warnings
from flows.storage.small_files import Place, copy
from tasks.core.errors import UserError, redacted
from tasks.core.files import write_text
from tasks.core.plurals import counted
from tasks.core.sources.forgotten import FILE as FORGOTTEN
from tasks.core.sources.forgotten import read_marks
from tasks.core.stage.code import SNAPSHOT, frozen_environment

PUSHED = Path(".retemper/pushed.json")  # the state of the last push: remote, settings, and dvc.lock
UNPUSHED = Path(".retemper/unpushed")  # to push: every stage computed since the last push, and every dvc.lock that a run found unpushed
PROJECTS = "projects"  # folder in a shared cache that lists the projects using it, for garbage collection

TURNS = "RETEMPER_TURNS"  # environment: a folder; of the runs that share it and a cache, one computes a stage, the others wait for its outs


def fetch_records() -> int:
    """Copy the remote's records of how the entries of dvc.lock were made. An error if the remote is unavailable or has no mark."""
    with repository() as repo:
        refuse_unmarked(repo.cloud.get_remote())
        location = _listed(repo)
        if not location:
            raise UserError("found an HTTP remote, which cannot list the runs that it has; expected a folder, S3, or SSH")
        forgettings.fetch(Path(repo.cache.local_cache_dir), *location)
        print(f"{counted(_fetch_makings(repo, read_lock().values()), 'records fetched')} of how artifacts were made")
    return 0


def _fetch_makings(repo: Any, entries: Iterable[Mapping[str, Any]]) -> int:
    location = _listed(repo)
    return makings.fetch(Path(repo.cache.local_cache_dir), *location, digests=map(entry_digest, entries)) if location else 0


def fetch_runs(repo: Any, folder: Path) -> bool:
    """Copy the remote's runs that belong into `folder` of the local run cache. Return whether there were any.

    If the remote is unavailable, print a warning and return False.
    """
    try:
        remote = repo.cloud.get_remote_odb(None, "fetch --run-cache", hash_name="md5-dos2unix")
        local, recorded = (
            Place(repo.cache.legacy.fs, str(folder)),
            Place(remote.fs, remote.fs.join(remote.path, "runs", *folder.parts[-2:])),
        )
        with share_with_group():
            return bool(copy(recorded, local, sorted(fnmatch.filter(recorded.names(), RUN))))
    except Exception as error:  # from DVC, the disk, or any library that talks to remotes
        print(f"{WARNING}a run that the remote may have is computed again: {redacted(' '.join(str(error).split()))}", flush=True)
        return False


def push(*, earlier: bool = False) -> int:
    """Run `dvc push --run-cache`, then push the outs of every dvc.lock in UNPUSHED, as DVC pushes only those of the current one.

    With `earlier`, for the first push to a remote, also push the outs of `earlier_results`.
    """
    from dvc.cli import main

    with repository() as repo:
        refuse_unmarked(repo.cloud.get_remote())
    status = int(main(["--wait-for-lock", "push", "--run-cache"]))
    with repository() as repo:
        status = status or _push_unpushed(repo, earlier_results(Path(repo.cache.local_cache_dir)) if earlier else [])
        if not status and (location := _listed(repo)):
            makings.send(Path(repo.cache.local_cache_dir), *location)
        if not status:
            refuse_unmarked(repo.cloud.get_remote())  # again: a share that was unmounted meanwhile received nothing
    return status


def _listed(repo: Any) -> tuple[Any, str] | None:
    """The filesystem and path of the remote; None if its files cannot be listed (HTTP)."""
    remote = repo.cloud.get_remote()
    return None if remote.fs.protocol in ("http", "https") else (remote.fs, remote.path)


def project_of(tree: Path = Path()) -> Path:
    """The project of a working tree: the tree itself, or if it is inside a project's .retemper (as a sweep's is), that project.

    Such a tree may be removed at any time.
    """
    parts = tree.absolute().parts
    return Path(*parts[: parts.index(SCRATCH.name)] if SCRATCH.name in parts else parts)


def unpushed() -> Path:
    """The folder UNPUSHED of this project."""
    return project_of() / UNPUSHED


def earlier_results(root: Path) -> list[Mapping[str, Any]]:
    """The entries of earlier results of this project that the cache in `root` may have.

    They are in its branches, tags, and experiments, and if no other project uses the cache, in all recorded runs. Empty once the project
    has forgotten records, which these results may contain.
    """
    if read_marks(project_of() / FORGOTTEN):
        return []
    referenced = [entry for _, locks in locks_of_references(invalid=False) for lock in locks for entry in lock.values()]
    if (root / PROJECTS).is_dir() or not is_in_own_tree(root):
        return referenced
    return [*(entry for _, entry in recorded_runs(root)), *referenced]  # pulled results have no recorded run


def is_in_own_tree(root: Path) -> bool:
    """Whether the cache in `root` is inside a working tree of this repository."""
    return any(root.resolve().is_relative_to(tree.resolve()) for tree in worktrees())


def objects_of(root: Path, entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """The digests of the outs of these entries, and of their files. Outs that the cache in `root` lacks, after a `gc`, are left out."""
    out_oids = {oid for entry in entries for oid, _ in outs(entry)}
    return {oid for out_oid in out_oids for oid in contents(root / "files" / "md5", out_oid)}


def _push_unpushed(repo: Any, earlier: Iterable[Mapping[str, Any]]) -> int:
    from dvc_data.hashfile.hash_info import HashInfo

    entries = [*earlier, *(entry for file in sorted(unpushed().glob("*.lock")) for entry in read_lock(file).values())]
    oids = objects_of(Path(repo.cache.local_cache_dir), entries)
    oids -= {out.hash_info.value for out in repo.index.outs}  # just pushed
    if not oids:
        return 0
    with repo.lock:
        failed = repo.cloud.push([HashInfo("md5", oid) for oid in oids]).failed
    return 1 if failed else 0


@contextmanager
def share_with_group() -> Iterator[None]:
    """Make folders of runs created in this context writable by the group, if the cache or the remote is shared with a group.

    DVC sets all other permissions itself. Do not use this for stages: their files are the user's own.
    """
    from dvc.config import Config

    config = Config.from_cwd()
    remote = config["remote"].get(config["core"].get("remote"), {})
    shared = "group" in (config["cache"].get("shared"), remote.get("shared"))
    before = os.umask(0o077)
    os.umask(before & ~0o070 if shared else before)
    try:
        yield
    finally:
        os.umask(before)


def reproduce(stage: str, pull: bool) -> int:
    """Run `dvc repro --single-item STAGE`. With `pull`, also `--pull`, so it may restore a colleague's result."""
    from dvc.cli import main

    fetched: list[Path] = []

    def fetch(repo: Any, folder: Path) -> bool:
        if copied := fetch_runs(repo, folder):
            fetched.append(folder)
        return copied

    if pull:
        fetch_runs_on_demand(fetch)
    observe_entries(_keep_for_push)
    status = int(main(["--wait-for-lock", "repro", "--single-item", *(["--pull"] if pull else []), stage]))
    if fetched and not status:
        with suppress(Exception), repository() as repo, share_with_group():  # records are good to have, not needed
            _fetch_makings(repo, [read_lock()[stage]])
    return status


def _keep_for_push(stage: str, entry: Mapping[str, Any]) -> None:
    """Remember an entry that is about to be in dvc.lock, until it is pushed: if the run is killed first, git may replace dvc.lock."""
    from dvc.config import Config

    if Config.from_cwd()["core"].get("remote"):
        with suppress(OSError):  # the stage itself is done
            write_text(unpushed() / f"{entry_digest(entry)}.lock", json.dumps({"schema": "2.0", "stages": {stage: entry}}, default=str))


def heal(corrupt: list[Download]) -> None:
    """Remove corrupt objects from the remote they came from, warn of each, and make the run push the recomputed ones.

    If the remote is unavailable, only forget about them: the next push or pull reports that.
    """
    PUSHED.unlink(missing_ok=True)
    with repository() as repo:
        remote = repo.cloud.get_remote()
        try:
            refuse_unmarked(remote)
        except Exception:  # from DVC, the disk, or any library that talks to remotes
            corrupt.clear()
            return
        try:
            for line in warnings(remote.name, remove_corrupt(remote, corrupt), Path(repo.cache.local_cache_dir)):
                print(f"{WARNING}{line}", flush=True)
        except Exception as error:  # from DVC, the disk, or any library that talks to remotes
            names = ", ".join(sorted({download.oid for download in corrupt}))
            reason = " ".join(str(error).split())
            print(f"{WARNING}remote {remote.name}: corrupt objects could not be removed: {names}: {reason}", flush=True)
    corrupt.clear()


def main(arguments: list[str]) -> int:
    replace_corrupt_state()
    if arguments[0] in ("get", "list"):
        from dvc.cli import main as dvc

        return int(dvc(arguments))
    if arguments in (["records"], ["push"], ["push", "earlier"]):
        try:
            with share_with_group():  # before importing DVC's modules, which remember the umask
                check_by_content()
                durably()
                ignore_stored_object_list()
                compare_runs_by_listing()
                send_listings_last()
                return push(earlier="earlier" in arguments) if "push" in arguments else fetch_records()
        except Exception as error:  # from DVC, the disk, or any library that talks to remotes
            print(f"ERROR: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
            return 1
    check_by_content()
    durably()
    ignore_stored_object_list()
    report_disk_errors()
    link_new_outs()
    command, *stages = arguments
    corrupt: list[Download] = []
    if command in ("pull", "repro-pull"):
        verify_downloads(corrupt.append)
        replace_unsaved()
    if GRAPH in os.environ:
        read_kept_graph(Path(os.environ[GRAPH]))
    if command in ("pull", "checkout"):
        from dvc.cli import main as dvc

        read_project_once()
        status = int(dvc(["--wait-for-lock", command, *stages]))
        if corrupt:
            heal(corrupt)
            status = int(dvc(["--wait-for-lock", command, *stages]))  # the first one stopped at a corrupt object
        return status
    if snapshot := os.environ.get(SNAPSHOT):
        os.environ.update(frozen_environment(Path(snapshot), os.environ))  # for the stage; our own imports are done
    if TURNS in os.environ:
        wait_for_same_stage(Path(os.environ[TURNS]))
    refuse_changed_sources()
    status = reproduce(stages[0], pull=command == "repro-pull")
    if corrupt:
        heal(corrupt)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
