"""A folder outside the project that a command writes: it appears whole, and takes the place of nothing."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import new_folder


@contextmanager
def new_place(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder of this process alone; on success it becomes `folder`, which is new or empty.

    UserError if something else was put there meanwhile; that stays.
    """
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made = beside / folder.name
        with new_folder(made) as temporary:
            yield temporary
        try:
            made.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UserError(f"{folder}: something else was put there meanwhile; remove it, or name another folder") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
