"""One run at a time in a folder, and locks that dead DVC processes left behind."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.errors import UserError

RUN_LOCK = Path(".retemper/run.lock")
RWLOCK = Path(".dvc/tmp/rwlock")


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


def _dvc_at_work(root: Path) -> bool:
    import psutil  # type: ignore[import-untyped]

    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command, folder = process.info["cmdline"] or [], process.info["cwd"]
        dvc = any(Path(word).name == "dvc" or word == "flows.remote" for word in command[:6])
        if dvc and folder and Path(folder).is_relative_to(root):
            return True
    return False
