"""DVC commands that its command line lacks.

`python -m flows.storage.dvc runs | push | pull STAGES | checkout STAGES | repro STAGE | repro-pull STAGE`

They check what they take from the cache by content (`flows.storage.cache`). `dvc repro --pull` fetches the remote's
whole run cache, every entry again, for every stage. Here, new entries are fetched once, and a stage then pulls only what
its own restored run needs.
"""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.repository.lock import read_lock
from flows.storage import makings
from flows.storage.cache import listing, object_path
from flows.storage.patches import by_content, durably, in_turn, read_once, runs_are_fetched, runs_by_listing, verify_downloads
from flows.storage.remote import WARNING, Download, refuse_unmarked, remove_corrupt, warnings
from tasks.core.stage.code import SNAPSHOT, frozen_environment

PUSHED = Path(".retemper/pushed.json")  # which dvc.lock was pushed where
UNPUSHED = Path(".retemper/unpushed")  # every dvc.lock that a run found or left unpushed: later ones do not name its outs

TURNS = "RETEMPER_TURNS"  # names a folder: among runs that share it and a cache, one computes a stage; the others wait and take its outs


def fetch_runs() -> int:
    """Copy missing run-cache entries from the remote: which run made what, not the outs themselves."""
    from dvc.repo import Repo

    repo = Repo()
    refuse_unmarked(repo.cloud.get_remote())
    remote = repo.cloud.get_remote_odb(None, "fetch --run-cache", hash_name="md5-dos2unix")
    with repo.lock:
        fetched = repo.stage_cache.transfer(remote, repo.cache.legacy, force=False)
    records = makings.fetch(Path(repo.cache.local_cache_dir), *listed) if (listed := _listed(repo)) else 0
    print(f"{len(fetched)} runs fetched, {records} records of how they were made")
    return 0


def push() -> int:
    """`dvc push --run-cache`, then the outs of every dvc.lock in UNPUSHED: DVC pushes only those of the current one."""
    from dvc.cli import main
    from dvc.repo import Repo

    with closing(Repo()) as repo:
        refuse_unmarked(repo.cloud.get_remote())
    status = int(main(["--wait-for-lock", "push", "--run-cache"]))
    with closing(Repo()) as repo:
        status = status or _push_unpushed(repo)
        if not status and (listed := _listed(repo)):
            makings.send(Path(repo.cache.local_cache_dir), *listed)
        if not status:
            refuse_unmarked(repo.cloud.get_remote())  # a share that was unmounted in the meantime received nothing
    return status


def _listed(repo: Any) -> tuple[Any, str] | None:
    """File system and place of the remote; None where nothing lists what is there (HTTP)."""
    remote = repo.cloud.get_remote()
    return None if remote.fs.protocol in ("http", "https") else (remote.fs, remote.path)


def _push_unpushed(repo: Any) -> int:
    from dvc_data.hashfile.hash_info import HashInfo

    entries = [entry for file in sorted(UNPUSHED.glob("*.lock")) for entry in read_lock(file).values()]
    if not entries:
        return 0
    root = Path(repo.cache.local.path)
    oids = {str(out["md5"]) for entry in entries for out in entry.get("outs") or [] if out.get("md5")}
    oids = {oid for oid in oids if object_path(root, oid).is_file()}  # the rest was garbage-collected, along with its run records
    oids |= {inner for oid in oids if oid.endswith(".dir") for inner in listing(root, oid).values()}
    with repo.lock:
        failed = repo.cloud.push([HashInfo("md5", oid) for oid in oids]).failed
    return 1 if failed else 0


def share_with_group() -> None:
    """Where the cache or the remote belongs to its group, so do the folders of runs that this process creates there.

    DVC sets all other permissions itself. Not for stages: what they write is the user's own.
    """
    from dvc.config import Config

    config = Config.from_cwd()
    remote = config["remote"].get(config["core"].get("remote"), {})
    if "group" in (config["cache"].get("shared"), remote.get("shared")):
        os.umask(os.umask(0o077) & ~0o070)


def reproduce(stage: str, pull: bool) -> int:
    """`dvc repro --single-item STAGE`; with `pull`, `--pull` less its fetch of the run cache."""
    from dvc.cli import main

    if pull:
        runs_are_fetched()
    return int(main(["--wait-for-lock", "repro", "--single-item", *(["--pull"] if pull else []), stage]))


def heal(corrupt: list[Download]) -> None:
    """Remove corrupt objects from the remote they were downloaded from, name them, and have the run push what it recomputes."""
    from dvc.repo import Repo

    repo = Repo()
    remote = repo.cloud.get_remote()
    try:
        for line in warnings(remote.name, remove_corrupt(remote, corrupt), Path(repo.cache.local_cache_dir)):
            print(f"{WARNING}{line}", flush=True)
    except Exception as error:  # from DVC, the disk, or any library that talks to remotes
        names = ", ".join(sorted({one.oid for one in corrupt}))
        print(f"{WARNING}remote {remote.name}: corrupt objects could not be removed: {names}: {' '.join(str(error).split())}", flush=True)
    corrupt.clear()
    PUSHED.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    if arguments in (["runs"], ["push"]):
        try:
            share_with_group()  # before importing DVC's modules, which remember the mask
            by_content()
            durably()
            runs_by_listing()
            return push() if arguments == ["push"] else fetch_runs()
        except Exception as error:  # from DVC, the disk, or any library that talks to remotes
            print(f"ERROR: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
            return 1
    by_content()
    durably()
    command, *stages = arguments
    corrupt: list[Download] = []
    if command in ("pull", "repro-pull"):
        verify_downloads(corrupt.append)
    if command in ("pull", "checkout"):
        from dvc.cli import main as dvc

        read_once()
        status = int(dvc(["--wait-for-lock", command, *stages]))
        if corrupt:
            heal(corrupt)
            status = int(dvc(["--wait-for-lock", command, *stages]))  # the first stopped at what was corrupt
        return status
    if code := os.environ.get(SNAPSHOT):
        os.environ.update(frozen_environment(Path(code), os.environ))  # for the stage: our own imports are done
    if TURNS in os.environ:
        in_turn(Path(os.environ[TURNS]))
    status = reproduce(stages[0], pull=command == "repro-pull")
    if corrupt:
        heal(corrupt)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
