"""The exceptions that are the user's to fix, and how a process ends with one: a line for people, a record for its caller."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

FULL = "No space left on device"
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give access"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "move what is there"),
}
# Rust (safetensors, tokenizers), faiss, NumPy and SQLite say it in words of their own; NumPy's `tofile` keeps no errno.
FULL_WORDS = re.compile(rf"{FULL}|os error 28|quota exceeded|disk is full|requested and \d+ written", re.IGNORECASE)
OUT_OF_MEMORY = re.compile(r"CUDA out of memory\.(?: Tried to allocate [^.]+\.\d+ \w+)?")
CREDENTIALS = re.compile(  # user:password of a URL, up to the last @: a password may hold / and @ itself
    r"""(?<=://)(?:[^\s/?\#@'"]*:(?:(?!://)[^\s'"])*@|[^\s/?\#'"]+@)"""
)
SIGNATURES = re.compile(  # of a query or a fragment
    r"(?i)([?&;#][\w.%-]*(?:token|key|secret|signature|sig|pass(?!age)|pwd|auth(?!or)|credential|jwt|session)[\w.%-]*=)[^\s&'\"]+"
)
# Codes that a terminal obeys: all controls but tab and newline (C0, DEL, C1), what turns the direction of writing, and lone surrogates,
# which cannot be printed at all.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


PROBLEM = "RETEMPER_PROBLEM"  # environment: the file into which a process that fails writes its problems, for its caller
USER_ERROR = 2  # exit status of a user's mistake


@dataclass(frozen=True)
class Problem:
    """Why something failed, as data. `message` is the whole line; the fields behind it are empty where an error gives them only there."""

    kind: str  # of the exceptions below; `stage`: one that ended by itself, `pipeline`: a run that did
    message: str
    status: int = USER_ERROR
    where: str = ""  # file, line, parameter or option
    found: str = ""
    expected: str = ""
    remedy: str = ""


class UserError(Exception):
    """A mistake of the user's. The message is one line: where, what was found, what was expected, how to fix it.

    Either the line as it is, or its parts: `UserError(where="a.tsv:7", found="2 columns", expected="3", remedy="add the tab")`.
    """

    kind = "user"

    def __init__(self, message: str = "", *, where: str = "", found: str = "", expected: str = "", remedy: str = "") -> None:
        parts = ", ".join(filter(None, (f"found {found}" if found else "", f"expected {expected}" if expected else "")))
        super().__init__(message or "; ".join(filter(None, (": ".join(filter(None, (where, parts))), remedy))))
        self.where, self.found, self.expected, self.remedy = where, found, expected, remedy

    @property
    def problem(self) -> Problem:
        """As data, without passwords."""
        message, *parts = (printable(" ".join(text.split())) for text in (str(self), self.where, self.found, self.expected, self.remedy))
        return Problem(self.kind, message, USER_ERROR, *parts)


class Invalid(UserError):
    """A value or a file that is there and not of the form it must have."""

    kind = "invalid"


class Missing(UserError):
    """A key, file or section that must be there."""

    kind = "missing"


class Corrupt(UserError):
    """A file that we wrote and that has changed since: a manifest, digest or checksum does not fit."""

    kind = "corrupt"


class Unavailable(UserError):
    """What should be read is not on this machine at the moment, or not yet: what is known of it still holds."""

    kind = "unavailable"


class DiskError(UserError):
    """A disk that is full, or that refuses."""

    kind = "disk"


class MemoryFull(UserError):
    """A GPU whose memory is full."""

    kind = "memory"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user's mistake, or a full or forbidden disk, into one line on stderr, a record for the caller, and exit status 2."""
    try:
        yield
    except UserError as error:
        problem = error.problem
    except Exception as error:
        if message := disk_fault(error):
            problem = DiskError(message).problem
        elif message := memory_fault(error):
            problem = MemoryFull(message).problem
        else:
            raise
    else:
        return
    print(f"retemper: {problem.message}", file=sys.stderr)
    report([problem])
    raise SystemExit(USER_ERROR)


def report(problems: Sequence[Problem]) -> None:
    """Write `problems` into the file that PROBLEM names, if any. The caller has made it, so that a full disk has room for it."""
    if path := os.environ.get(PROBLEM):
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                text = json.dumps([asdict(problem) for problem in problems]).encode()
                os.ftruncate(file, os.write(file, text))
            finally:
                os.close(file)


def disk_fault(error: BaseException | None) -> str:
    """What the disk refused, as one line for the user; empty for any other error. Libraries wrap it, so causes are searched."""
    if error is None:
        return ""
    place, reason, remedy = "disk", "", ""
    if isinstance(error, OSError) and error.errno in REMEDIES:
        place, reason, remedy = str(error.filename or place), str(error.strerror), REMEDIES[error.errno]
    elif FULL_WORDS.search(str(error)):
        reason, remedy = FULL, REMEDIES[errno.ENOSPC]
    if not reason:
        return disk_fault(error.__cause__ or error.__context__)
    return f"{place}: {reason}; nothing half-written was kept, {remedy} and run again"


def memory_fault(error: BaseException | None) -> str:
    """That a GPU's memory is full, as one line for the user; empty for any other error. Known by PyTorch's words."""
    if error is None:
        return ""
    found = OUT_OF_MEMORY.search(str(error))
    if not found:
        return memory_fault(error.__cause__ or error.__context__)
    return (
        f"{found[0]}: lower batch_tokens of this stage (params.yaml) or graph_tokens (runtime.yaml), or end what else is on the GPU; "
        "a training goes on from its last checkpoint"
    )


def redacted(text: str) -> str:
    """`text` without the passwords and tokens of its URLs, for lines that are printed or kept."""
    return SIGNATURES.sub(r"\1***", CREDENTIALS.sub("***@", text))


def escaped(text: str) -> str:
    """`text` with its control characters written out (`\\x1b`), so that a title or an id cannot redraw a terminal or forge a log's line.

    Tabs and newlines stay: whoever prints one line from data takes them out.
    """
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable(text: str) -> str:
    """`text` as every line is shown or logged: no secrets of URLs, no control characters."""
    return escaped(redacted(text))
