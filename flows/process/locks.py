"""Allow one run at a time in a folder, and clean up after killed DVC processes: stale locks and a truncated dvc.lock."""

import fcntl
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

from tasks.core.errors import UserError
from tasks.core.files import write_text
from tasks.core.stage.run_lock import RUN_LOCK as RUN_LOCK
from tasks.core.stage.run_lock import Busy as Busy
from tasks.core.stage.run_lock import hold_run_lock as hold_run_lock
from tasks.core.stage.run_lock import lock_file

RWLOCK = Path(".dvc/tmp/rwlock")
DVC_LOCK = Path("dvc.lock")
BEFORE = Path(".retemper/dvc.lock")
AFTER = Path(".retemper/dvc.lock.intact")


@contextmanager
def wait_and_hold(path: Path, waiting: Callable[[], None] = lambda: None, *, seconds: float | None = None) -> Iterator[None]:
    """Wait for the lock `path` and hold it. `waiting` is called if another process holds it. The kernel releases it when we die.

    Raises UserError if another process still holds it after `seconds` (None: wait without a limit).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        try:
            lock_file(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            if seconds is None:
                lock_file(handle, path, fcntl.LOCK_EX)
            else:
                _wait(handle, path, seconds)
        yield


def _wait(handle: TextIO, path: Path, seconds: float) -> None:
    """Lock the open file at `path` within `seconds`. UserError if another process does not release it by then."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(f"{path}: another process has held it for {seconds:g} s; find it (fuser {path}) and stop it") from None
        time.sleep(0.2)


@contextmanager
def hold_run_locks(folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of several projects' folders. UserError if another run holds one, or if we have no permission."""
    with ExitStack() as stack:
        for folder in folders:
            try:
                stack.enter_context(hold_run_lock(RUN_LOCK if folder == Path.cwd() else folder / RUN_LOCK))
            except PermissionError:
                raise UserError(
                    f"{folder / RUN_LOCK}: no permission, so a run may be in progress there; have its owner give access"
                ) from None
        yield


def repair(path: Path = RWLOCK) -> bool:
    """Remove DVC's record of which process reads and writes what, if it names dead processes or was truncated by a kill.

    It is only removed if no DVC process is alive in this folder. Return whether it was removed. (DVC's other locks are
    held by the kernel and end with their process.)
    """
    try:
        record = json.loads(path.read_bytes())
        stale = bool(record.get("read") or record.get("write"))
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError):
        stale = True
    if not stale or _dvc_at_work(path.resolve().parents[2]):
        return False
    path.unlink(missing_ok=True)
    return True


def remember(lock: Path = DVC_LOCK, memory: Path = BEFORE) -> None:
    """Keep a copy of the readable dvc.lock until the run has ended well, because DVC writes it in place, and a kill may truncate it."""
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    if not memory.exists() or memory.read_text(encoding="utf-8") != text:
        write_text(memory, text)


def forget(lock: Path = DVC_LOCK, memory: Path = BEFORE, intact: Path = AFTER) -> None:
    """Drop the copy of `remember`, after a run that ended well. The intact dvc.lock is copied to `intact`, to detect a later truncation."""
    if lock.exists():
        write_text(intact, lock.read_text(encoding="utf-8"))
    memory.unlink(missing_ok=True)


def restore(
    is_readable: Callable[[], bool],
    lock: Path = DVC_LOCK,
    memory: Path = BEFORE,
    *,
    intact: Path = AFTER,
    committed: Callable[[], str | None] = lambda: None,
    staged: Callable[[], str | None] = lambda: None,
) -> str:
    """Restore a truncated dvc.lock and return a line that says so; "" if it was not truncated.

    After a run that did not end well (`memory` exists), a dvc.lock is truncated if it cannot be read or has lost entries. It is
    restored as it was before that run; stages that the run finished are then taken from DVC's run cache. Otherwise, it is truncated
    if the copy from the last good run (`intact`), or the committed one, begins with it: YAML cut between two lines is still valid.
    A dvc.lock that equals the committed one, or the one in git's index (`staged`), where `git checkout REVISION -- dvc.lock` puts it, is
    not truncated. Conflict markers are left to the user.
    """
    if not lock.exists():
        return ""
    current = lock.read_text(encoding="utf-8", errors="replace")
    head = cache(committed)
    if memory.exists():
        text = memory.read_text(encoding="utf-8")
        if current and (current == text or "<<<<<<<" in current):
            return ""
        lost_stages = _stages(text) - _stages(current)
        if not (current.endswith("\n") and is_readable()) or (lost_stages and current not in (head(), staged())):
            write_text(lock, text) if text else lock.unlink(missing_ok=True)
            return "was truncated by a kill; restored as it was before that run, whose finished stages are in the cache"
        return ""
    last_good = intact.read_text(encoding="utf-8") if intact.exists() else ""
    for place, text in (("the last run left it", last_good), ("git has it", head() or "")):
        if text != current and text.startswith(current) and current not in (head(), staged()):
            missing = sorted(_stages(text) - _stages(current))
            write_text(lock, text)
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            return f"was truncated{f' and had lost {names}' if missing else ''}; restored as {place}"
    return ""


def _stages(text: str) -> set[str]:
    """The names of the stages in a dvc.lock as DVC writes it. It may be truncated."""
    return set(re.findall(r"^  (\S+):$", text, re.MULTILINE))


def _dvc_at_work(root: Path) -> bool:
    import psutil  # type: ignore[import-untyped]

    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command, folder = process.info["cmdline"] or [], process.info["cwd"]
        words = " ".join(command).split()[:6]  # a program that has set its title has it all in the first
        is_dvc = any(Path(word).name == "dvc" or word == "flows.storage.dvc" for word in words)
        if is_dvc and folder and _project_of(Path(folder)) == root:
            return True
    return False


def _project_of(folder: Path) -> Path | None:
    """The innermost project that contains `folder`. A worktree inside a project is its own project."""
    return next((place for place in (folder, *folder.parents) if (place / ".dvc").is_dir()), None)
