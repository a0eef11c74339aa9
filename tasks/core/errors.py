"""The one exception that is the user's to mend, and how a stage ends with it."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake of the user's. The message is one line: where, what was found, what was expected, how to mend it."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user's mistake, or a full or forbidden disk, into one line on stderr and exit status 2."""
    try:
        yield
    except UserError as error:
        message = " ".join(str(error).split())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        message = f"{error.filename or 'disk'}: {error.strerror}; nothing half-written was kept, make room or give access and run again"
    else:
        return
    print(f"retemper: {message}", file=sys.stderr)
    raise SystemExit(2)
