"""A folder outside the project that a command writes: it appears complete or not at all, and replaces nothing."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.files import new_folder


@contextmanager
def new_place(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder of this process alone; on success it becomes `folder`, which is new or empty.

    Raises UserError if it is a mount point, which nothing can replace, or if something else was put there meanwhile, which stays.
    """
    if folder.is_mount():
        raise UserError(f"{folder}: found a mount point, expected a new folder; name one below it: {folder / 'data'}")
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        complete = scratch / folder.name
        with new_folder(complete) as temporary:
            yield temporary
        try:
            complete.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UserError(f"{folder}: another process created it in the meantime; remove it, or name another folder") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
