"""One run at a time in a folder: a lock of the kernel, which ends with its process."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tasks.core.errors import UserError

RUN_LOCK = Path(".retemper/run.lock")
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Busy(UserError):
    """Another run holds the lock."""


@contextmanager
def hold_run_lock(path: Path = RUN_LOCK) -> Iterator[None]:
    """Hold the lock of a folder for one run. Raises Busy if another run holds it, and UserError if the file system has no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as handle:
        try:
            lock_file(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip()
            raise Busy(f"{path}: another run is in progress in this folder (process {owner}); wait for it or stop it") from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def lock_file(handle: TextIO, path: Path, how: int) -> None:
    """Lock an open file as `flock` does. UserError if its file system has no locks; BlockingIOError if another process has it."""
    try:
        fcntl.flock(handle, how)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        raise UserError(
            f"{path.absolute()}: its file system has no locks ({error.strerror}), expected one with flock; "
            "enable them there (NFS: lockd), or move the project to another disk"
        ) from None
