"""One run at a time in a folder, and locks that dead DVC processes left behind."""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import write_text

RUN_LOCK = Path(".retemper/run.lock")
RWLOCK = Path(".dvc/tmp/rwlock")
DVC_LOCK = Path("dvc.lock")
BEFORE = Path(".retemper/dvc.lock")
AFTER = Path(".retemper/dvc.lock.intact")


@contextmanager
def only_run(path: Path = RUN_LOCK) -> Iterator[None]:
    """Hold the folder for one run; UserError where another holds it. The kernel lets go of it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise UserError(f"{path}: a run is at work in this folder (process {handle.read().strip()}); wait for it or stop it") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


@contextmanager
def only_run_in(folders: Iterable[Path]) -> Iterator[None]:
    """Hold several projects' folders; UserError where another holds one, or it is somebody's who does not let us."""
    with ExitStack() as held:
        for folder in folders:
            try:
                held.enter_context(only_run(RUN_LOCK if folder == Path.cwd() else folder / RUN_LOCK))
            except PermissionError:
                raise UserError(f"{folder / RUN_LOCK}: no permission, so a run may be at work there; its owner has to allow it") from None
        yield


def repair(path: Path = RWLOCK) -> bool:
    """Remove DVC's record of who reads and writes what, where it names dead processes or was cut short by a kill.

    Only while no DVC process is alive in this folder; True where something was removed. (DVC's other locks are held
    by the kernel and end with their process.)
    """
    try:
        held = json.loads(path.read_bytes())
        stale = bool(held.get("read") or held.get("write"))
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError):
        stale = True
    if not stale or _dvc_at_work(path.resolve().parents[2]):
        return False
    path.unlink(missing_ok=True)
    return True


def remember(lock: Path = DVC_LOCK, memory: Path = BEFORE) -> None:
    """Keep a copy of dvc.lock, which can be read, until the run has ended well: DVC writes it in place, and a kill may cut it short."""
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    if not memory.exists() or memory.read_text(encoding="utf-8") != text:
        write_text(memory, text)


def forget(lock: Path = DVC_LOCK, memory: Path = BEFORE, intact: Path = AFTER) -> None:
    """The run has ended well, and dvc.lock is intact: `intact` keeps a copy of it, by which a later cut is seen."""
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
) -> str:
    """Put back a dvc.lock that was cut short, and say so in a line; nothing where it was not.

    After a run that did not end well (`memory` is there) that is one that cannot be read or has lost entries: it is put back as it was
    before that run, whose finished stages are in DVC's run cache and taken from there. Otherwise it is one with which the copy of
    the last good run (`intact`), or the committed one, begins: YAML that was cut between two lines is YAML. What git has committed
    is no cut, and conflict marks are left to the user.
    """
    if not lock.exists():
        return ""
    found = lock.read_text(encoding="utf-8", errors="replace")
    head = cache(committed)
    if memory.exists():
        text = memory.read_text(encoding="utf-8")
        if found and (found == text or "<<<<<<<" in found):
            return ""
        lost = _stages(text) - _stages(found)
        if not (found.endswith("\n") and is_readable()) or (lost and found != head()):
            write_text(lock, text) if text else lock.unlink(missing_ok=True)
            return "was cut short by a kill; it is as it was before that run, whose finished stages are in the cache"
        return ""
    kept = intact.read_text(encoding="utf-8") if intact.exists() else ""
    for place, text in (("the last run left it", kept), ("git has it", head() or "")):
        if text != found and text.startswith(found) and found != head():
            missing = sorted(_stages(text) - _stages(found))
            write_text(lock, text)
            names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            return f"was cut short{f' and had lost {names}' if missing else ''}; it is again as {place}"
    return ""


def _stages(text: str) -> set[str]:
    """Names of the stages in a dvc.lock as DVC writes it, which may be cut."""
    return set(re.findall(r"^  (\S+):$", text, re.MULTILINE))


def _dvc_at_work(root: Path) -> bool:
    import psutil  # type: ignore[import-untyped]

    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command, folder = process.info["cmdline"] or [], process.info["cwd"]
        dvc = any(Path(word).name == "dvc" or word == "flows.repository.dvc" for word in command[:6])
        if dvc and folder and _project_of(Path(folder)) == root:
            return True
    return False


def _project_of(folder: Path) -> Path | None:
    """The innermost project around `folder`: a worktree within a project is one of its own."""
    return next((place for place in (folder, *folder.parents) if (place / ".dvc").is_dir()), None)
