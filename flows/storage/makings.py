"""Records of how each artifact was made: by whom, when, at which commit, with which versions and hardware, in which time and memory.

A record belongs to an entry of dvc.lock (command, parameters, inputs and outs), by digest. It is kept in the cache and the team's remote
beside DVC's own objects, so there are records of colleagues' artifacts too. No stage reads it, and no digest covers it.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.repository.git import git
from flows.repository.lock import Lock, entry_digest
from flows.storage.small_files import Place, copy
from tasks.core.files import read_mapping, write_text

FOLDER = "made"  # in a cache or a remote
OURS = (":!dvc.lock", ":!data/source.json")  # files that a run itself writes; parameters are in dvc.lock
NAME = re.compile(r"[0-9a-f]{64}\.json")
NEWEST = 2000  # records that a search without a digest reads, at most


def record_path(cache: Path, digest: str) -> Path:
    """The path of the record of an entry of dvc.lock, by the entry's digest (SHA-256, hexadecimal)."""
    return cache / FOLDER / digest[:2] / f"{digest}.json"


def save(cache: Path, digest: str, record: Mapping[str, Any]) -> None:
    """Store a record, unless there is one: the first to make an artifact counts. On a full or read-only disk, only the record is lost."""
    path = record_path(cache, digest)
    with suppress(OSError):
        if not path.exists():
            mode = cache.stat().st_mode & 0o7777  # a group's cache is writable by the group
            for folder in (path.parent.parent, path.parent):
                with suppress(FileExistsError):  # another run may have made it just now
                    folder.mkdir()
                    folder.chmod(mode)
            write_text(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
            path.chmod(mode & 0o666)


def read(cache: Path, digests: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The records of these entries, by digest. Missing and truncated ones are left out."""
    return {digest: record for digest in digests if (record := read_mapping(record_path(cache, digest)))}


def of_stages(cache: Path, lock: Lock) -> dict[str, dict[str, Any]]:
    """The records of these stages of a dvc.lock, by stage. Stages without a record are left out."""
    digests = {stage: entry_digest(entry) for stage, entry in lock.items()}
    records = read(cache, digests.values())
    return {stage: records[digest] for stage, digest in digests.items() if digest in records}


def latest(cache: Path, stages: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The latest record of each of these stages, for whatever entry. Only the newest records in the cache are searched."""
    wanted, found = set(stages), dict[str, dict[str, Any]]()
    files = sorted(((entry.stat().st_mtime, entry.path) for folder in _folders(cache) for entry in os.scandir(folder)), reverse=True)
    for _, path in files[:NEWEST]:
        record = read_mapping(Path(path))
        name = record.get("stage")
        if name in wanted and (name not in found or record.get("at", 0) > found[name].get("at", 0)):
            found[name] = record
    return found


def _folders(cache: Path) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(cache / FOLDER) if entry.is_dir()]
    except OSError:
        return []


def current_provenance() -> dict[str, str]:
    """The user (`by`) and the commit, and `changed` if code or dvc.yaml differs from it. Unknown values are left out."""
    person = git("var", "GIT_AUTHOR_IDENT", check=False).partition(">")  # name <address> time
    commit = git("rev-parse", "--verify", "--quiet", "HEAD", check=False)
    differs = commit and git("status", "--porcelain", "--untracked-files=no", "--", "tasks", "dvc.yaml", *OURS, check=False)
    fields = {"by": f"{person[0]}>" if person[1] else "", "commit": commit, "changed": "code" if differs else ""}
    return {key: value for key, value in fields.items() if value}


def send(cache: Path, fs: Any, place: str) -> int:
    """Copy the records that are missing there to the remote at `place` of DVC's filesystem `fs`; return how many."""
    local, remote = Place.on_disk(cache / FOLDER), Place(fs, fs.join(place, FOLDER))
    return copy(local, remote, sorted(_records(local) - _records(remote)))


def fetch(cache: Path, fs: Any, place: str, *, digests: Iterable[str]) -> int:
    """Copy the records of these entries that are missing here from the remote, if it has them; return how many."""
    local, remote = Place.on_disk(cache / FOLDER), Place(fs, fs.join(place, FOLDER))
    missing = [path for digest in digests if not (path := record_path(cache, digest)).exists()]
    return copy(remote, local, [f"{path.parent.name}/{path.name}" for path in missing])


def _records(place: Place) -> set[str]:
    return {name for name in place.names() if NAME.fullmatch(name.rpartition("/")[2])}


def describe(record: Mapping[str, Any]) -> str:
    """A record on one line, with person, time, commit, and cost: `Ann, 2026-11-24 02:40 UTC, commit 1a2b3c4, 92.3 s, 850 MiB`."""
    commit = str(record.get("commit", ""))[:7]
    changed = f" with changed {record['changed']}" if record.get("changed") else ""
    peak = (record.get("cost") or {}).get("peak_mib")
    parts = [
        str(record.get("by", "")).partition(" <")[0],
        f"{datetime.fromtimestamp(record['at'], UTC):%Y-%m-%d %H:%M} UTC" if "at" in record else "",
        f"commit {commit}{changed}" if commit else "",
        f"{record['seconds']:,.1f} s{' or more' if record.get('at_least') else ''}" if "seconds" in record else "",
        f"{peak:,.0f} MiB" if peak else "",
    ]
    return ", ".join(filter(None, parts))


def ran_with(record: Mapping[str, Any]) -> str:
    """The environment of a record on one line: processor, threads, arithmetic, and versions."""
    return ", ".join(f"{key} {value}" for key, value in (record.get("environment") or {}).items())
