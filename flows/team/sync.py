"""A team's remote: before a run, pull what others computed; after it, push what we computed. An unavailable remote never costs work."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from flows.process.prepared import python
from flows.process.processes import Processes, environment
from flows.repository.lock import Lock, read_lock
from flows.storage import forgettings
from flows.storage.cache import cache_folder, unwritable_folder
from flows.storage.dvc import PUSHED, UNPUSHED, earlier_results, project_of, unpushed
from flows.storage.remote import WARNING
from tasks.core.errors import FULL, DiskError, parse_disk_fault, redacted
from tasks.core.files import file_digest, write_json, write_text

REMOTE = [sys.executable, "-m", "flows.storage.dvc"]
LOCK = Path("dvc.lock")
NAMED = 3  # files that a problem names, at most
LOST = "failed to transfer"  # to the cache or the remote: DVC prints it, but exits with status 0
# How S3, ssh, and others word a refusal, however DVC wraps it.
OVER_HTTP = re.compile(r"40[13], message=.*url=")  # aiohttp's words
REFUSED = re.compile(r"Forbidden|Denied|Unauthorized|InvalidAccessKey|SignatureDoes|Expired|credentials|Authentication", re.IGNORECASE)
FORBIDDEN = re.compile(r"\[Errno (1|13)\]")  # from a folder or an ssh host's disk: no key would help
READ_ONLY = re.compile(r"\[Errno 30\]")
NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)

Warn = Callable[[str], None]


def remote_name(repo: Any) -> str | None:
    """The remote that this project uses (`dvc remote add --default`), if any."""
    name = repo.config["core"].get("remote")
    return str(name) if name else None


def pull(processes: Processes, remote: str, stages: Iterable[str], *, warn: Warn) -> bool:
    """Fetch the outs of `stages` in dvc.lock, and the records of who made them. Return False, with a warning, if the remote is unavailable.

    Outs that another project's `forget` removed from it are reported. Raises DiskError if the disk is full: nothing is written to the
    remote, so it is the local disk, on which no stage could finish.
    """
    fresh = not (cache_folder() / "files").exists()
    if not fresh and not is_pushed(remote):  # results of a run that was killed, or whose remote was unavailable
        _keep_unpushed()
    if problem := _run(processes, [*REMOTE, "records"], warn):
        if _is_cache_to_blame(problem, remote, warn):
            return False
        state = "refuses access" if REFUSED.search(problem) else "is unavailable"
        warn(f"remote {remote} {state}, so nothing is pulled: {problem}{remedy(remote, problem)}")
        return False
    stages = list(stages)
    if stages and (problem := _run(processes, [*REMOTE, "pull", *stages], warn)):
        if _is_cache_to_blame(problem, remote, warn):
            return False
        if outage := _run(processes, [*REMOTE, "records"], warn):  # a share that was unmounted in the meantime
            warn(f"remote {remote} has become unavailable, so not everything is pulled: {outage}{remedy(remote, outage)}")
            return False
        lock = {name: entry for name, entry in read_lock().items() if name in stages}
        explanations = list(forgettings.explain_missing(cache_folder(), lock))
        for line in explanations:
            warn(line)
        if not (explanations and forgettings.are_all(cache_folder(), lock)):
            warn(f"remote {remote} lacks some outs that dvc.lock names, so they are computed here: {problem}")
    elif fresh:  # all that is here came from there
        write_json(PUSHED, _state(remote))
    return True


def _is_cache_to_blame(problem: str, remote: str, warn: Warn) -> bool:
    """Whether the cache is the cause. Warn if it is read-only, since all needed may be in it; raise DiskError if its disk is full."""
    if parse_disk_fault(problem)[0] == FULL:
        raise DiskError(f"{cache_folder()}: {FULL}; what was pulled is kept, make room and run again")
    if place := unwritable_folder(cache_folder()):
        warn(f"{place}: no permission to write to the cache, so nothing is pulled from remote {remote}")
    return place is not None


def restore(processes: Processes, stages: Iterable[str]) -> None:
    """Check out all outs of `stages` that the cache has, in one command (for example in a new worktree). The other stages will run."""
    _run(processes, [*REMOTE, "checkout", *stages], lambda _: None)


def push(processes: Processes, remote: str, warn: Warn) -> bool:
    """Send outs and run records to the remote. Return False, with a warning, if that fails; the next run then sends them with its own."""
    sent = list(unpushed().glob("*.lock"))  # concurrent runs, in trees of a sweep, add others
    first, project = is_first(remote), project_of()
    if problem := _run(processes, [*REMOTE, "push", *(["earlier"] if first else [])], warn):
        _keep_unpushed()
        warn(f"remote {remote}: not everything was pushed; the next run tries again: {problem}{remedy(remote, problem)}")
        return False
    if first:
        write_json(project / PUSHED, _state(remote, project) | {"lock": ""})  # the project's own dvc.lock may differ
    write_json(PUSHED, _state(remote))
    for path in sent:
        path.unlink(missing_ok=True)
    return True


def _keep_unpushed() -> None:
    if LOCK.exists():
        write_text(unpushed() / f"{file_digest(LOCK)}.lock", LOCK.read_text(encoding="utf-8"))


def remedy(remote: str, problem: str) -> str:
    """How to fix a remote's refusal: a clause to put after `problem`, empty if no fix is known."""
    if NO_BUCKET.search(problem):
        return "; create the bucket, or use another remote (retemper remote remove, retemper remote add)"
    if READ_ONLY.search(problem):
        return "; mount it for writing"
    if FORBIDDEN.search(problem):
        return "; give access: its group must be able to write there, and the whole team must be in that group"
    if REFUSED.search(problem) and OVER_HTTP.search(problem):
        local = f"dvc remote modify --local {remote}"
        return f"; fix its credentials: {local} auth basic, {local} user NAME, {local} password PASSWORD"
    if REFUSED.search(problem):
        keys = "--option access_key_id=- --option secret_access_key=- (ssh: password=-)"
        return f"; fix its credentials: retemper remote add {remote} URL {keys}"
    _, fix = parse_disk_fault(problem)
    return f"; {fix}" if fix else ""


def reason(remote: str, error: BaseException) -> str:
    """A remote's error in one line, and how to fix it."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message + remedy(remote, message)


def is_pushed(remote: str) -> bool:
    """Whether the current dvc.lock, and all that was computed here before, was pushed to `remote` from here."""
    return not any(unpushed().glob("*.lock")) and _read_pushed(Path()) == _state(remote)


def is_first(remote: str, tree: Path = Path()) -> bool:
    """Whether the next push is the first of a tree's project to `remote` with its current settings; it then sends earlier results too."""
    project = project_of(tree)
    return _read_pushed(project) | {"lock": ""} != _state(remote, project) | {"lock": ""}


def unsent(project: Path, cache: Path) -> list[Mapping[str, Any]]:
    """The entries that the next push of a project with this cache sends, apart from those of dvc.lock; none without a remote."""
    from dvc.config import Config

    remote = Config(dvc_dir=str(project / ".dvc"))["core"].get("remote")
    if not remote:
        return []
    unpushed_entries = [entry for path in sorted((project / UNPUSHED).glob("*.lock")) for entry in read_lock(path).values()]
    return [*unpushed_entries, *(earlier_results(cache) if is_first(remote, project) else [])]


def _read_pushed(tree: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((tree / PUSHED).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


def restorable(status: dict[str, list[Any]], lock: Lock) -> list[str]:
    """Stages of a `read_status` whose only change is that their files are missing (in a fresh clone).

    A stage that has never run and reads no parameters looks the same, but dvc.lock has no entry for it.
    """
    return [name for name, changes in status.items() if name in lock and all(_missing(change) for change in changes)]


def _missing(change: Any) -> bool:
    return isinstance(change, dict) and all(
        kind in ("changed deps", "changed outs") and all(state in ("deleted", "not in cache") for state in files.values())
        for kind, files in change.items()
    )


def _state(remote: str, tree: Path = Path()) -> dict[str, str]:
    config = "".join(path.read_text() for path in (tree / ".dvc/config", tree / ".dvc/config.local") if path.exists())
    digest = hashlib.sha256(config.encode()).hexdigest()  # it may hold a password
    return {"remote": remote, "config": digest, "lock": file_digest(tree / LOCK) if (tree / LOCK).exists() else ""}


def _run(processes: Processes, command: list[str], warn: Warn) -> str:
    """Run a command and pass its warnings to `warn`; return a line on what went wrong, or an empty string."""
    lines: list[str] = []

    def read(line: str) -> None:
        if line.startswith(WARNING):
            warn(redacted(line.removeprefix(WARNING)))
        else:
            lines.append(line)

    env = environment()
    if command[0] == sys.executable:
        command = [python(env), *command[1:]]
    status = processes.run(command, read, env)
    problems = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    failed = status or any(line.startswith(f"ERROR: {LOST}") for line in lines)
    return redacted(f"{problems[0].removeprefix('ERROR: ')}{_listed(problems[0], lines)} (status {status})") if failed else ""


def _listed(problem: str, lines: list[str]) -> str:
    """The items that a problem ending with a colon lists on the lines below it, up to `Is your cache up to date?`."""
    if not problem.endswith(":"):
        return ""
    names = list(takewhile(lambda line: " " not in line, lines[lines.index(problem) + 1 :]))
    return f" {', '.join(names[:NAMED])}{', ...' if names[NAMED:] else ''}"
