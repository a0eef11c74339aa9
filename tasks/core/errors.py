"""Exceptions that the user can fix, and how a process ends with one: a line for people, a record for its caller."""

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

FULL = "No space left on device"
FAILING = "Input/output error"
ROOM = "make room"
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), ROOM),
    errno.EIO: "check the disk (dmesg, smartctl)",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give access"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "name another path, or move what is in the way,"),
    errno.ENAMETOOLONG: "shorten the name",
}
# Rust (safetensors, tokenizers), faiss, NumPy, and SQLite word it differently; NumPy's `tofile` keeps no errno.
FULL_WORDS = re.compile(rf"{FULL}|os error 28|quota exceeded|disk is full|requested and \d+ written", re.IGNORECASE)
FAILING_WORDS = re.compile(rf"{FAILING}|os error 5\b|disk I/O error", re.IGNORECASE)
OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory\.(?: Tried to allocate [^.]+\.\d+ \w+)?|CUDA error: out of memory|Cuda failure (?:\d+ )?'out of memory'|"
    r"CUDA error: CUBLAS_STATUS_ALLOC_FAILED|cudaMalloc error out of memory"  # the last is faiss's
)
GPU_FAULT = re.compile(  # faults of hardware, drivers, and other users, not those that a bug of ours causes
    r"CUDA error: (?:uncorrectable \w+ error|unspecified launch failure|unknown error|hardware stack error|system not yet initialized|"
    r"no CUDA-capable device is detected|(?:all )?CUDA-capable device\S* (?:is/)?are busy or unavailable)"
)
CREDENTIALS = re.compile(  # user:password of a URL, up to the last @: a password may contain / and @
    r"""(?<=://)(?:[^\s/?\#@'"]*:(?:(?!://)[^\s'"])*@|[^\s/?\#'"]+@)"""
)
SIGNATURES = re.compile(  # in a query or a fragment
    r"(?i)([?&;#][\w.%-]*(?:token|key|secret|signature|sig|pass(?!age)|pwd|auth(?!or)|credential|jwt|session)[\w.%-]*=)[^\s&'\"]+"
)
# Terminal control codes: all controls but tab and newline (C0, DEL, C1), changes of text direction, and lone surrogates, which cannot be
# printed at all.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


PROBLEM = "RETEMPER_PROBLEM"  # environment: the file to which a failing process writes its problems, for its caller
USER_ERROR = 2  # exit status of a user error


@dataclass(frozen=True)
class Problem:
    """Why something failed, as data. `message` is the whole line; the other fields are empty if an error gives only the line."""

    kind: str  # of the exceptions below; `stage`: a stage that exited by itself, `pipeline`: a run that did
    message: str
    status: int = USER_ERROR
    where: str = ""  # file, line, parameter, or option
    found: str = ""
    expected: str = ""
    remedy: str = ""


class UserError(Exception):
    """An error that the user can fix. The message is one line: where, what was found, what was expected, how to fix it.

    Pass either the whole line or its parts: `UserError(where="a.tsv:7", found="2 columns", expected="3", remedy="add the tab")`.
    """

    kind = "user"

    def __init__(self, message: str = "", *, where: str = "", found: str = "", expected: str = "", remedy: str = "") -> None:
        parts = ", ".join(filter(None, (f"found {found}" if found else "", f"expected {expected}" if expected else "")))
        super().__init__(message or "; ".join(filter(None, (": ".join(filter(None, (where, parts))), remedy))))
        self.where, self.found, self.expected, self.remedy = where, found, expected, remedy

    @property
    def problem(self) -> Problem:
        """The error as data, without passwords."""
        message, *parts = (printable(" ".join(text.split())) for text in (str(self), self.where, self.found, self.expected, self.remedy))
        return Problem(self.kind, message, USER_ERROR, *parts)


class Invalid(UserError):
    """A value or file that exists but has the wrong form."""

    kind = "invalid"


class Missing(UserError):
    """A required key, file, or section is missing."""

    kind = "missing"


class Corrupt(UserError):
    """A file that we wrote has changed since: a manifest, digest, or checksum does not match."""

    kind = "corrupt"


class Unavailable(UserError):
    """An input is not on this machine now, or not yet; what was recorded about it is still valid."""

    kind = "unavailable"


class DiskError(UserError):
    """A disk is full, fails, or denies access."""

    kind = "disk"


class MemoryFull(UserError):
    """A GPU's memory is full."""

    kind = "memory"


class WorkersLost(UserError):
    """Workers of this machine or a cluster were lost more often than they may start again."""

    kind = "workers"


class InputChanged(UserError):
    """An input of a stage was changed while the stage ran."""

    kind = "changed"


class GpuFailed(UserError):
    """A GPU, its driver, or another program on it fails."""

    kind = "gpu"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user error, or a full, failing, or forbidden disk, into one line on stderr, a record for the caller, and exit status 2."""
    try:
        yield
    except Exception as error:
        fault = user_error(error)
        if fault is None:
            raise
        problem = fault.problem
    else:
        return
    print(f"retemper: {problem.message}", file=sys.stderr)
    report([problem])
    try:
        sys.stdout.flush()
    except OSError:  # a full disk: Python would try again at its end, and exit with 120
        _print_nothing_more()
    raise SystemExit(USER_ERROR)


def handle_broken_pipe() -> int:
    """Handle a BrokenPipeError of standard output (`retemper lineage star | head`): print nothing more, and return the exit status."""
    _print_nothing_more()
    return 128 + signal.SIGPIPE


def _print_nothing_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def user_error(error: Exception) -> UserError | None:
    """`error` as a UserError: itself, or the error for a full, failing, or forbidden disk, or for a full or failing GPU; None for a bug."""
    if isinstance(error, UserError):
        return error
    if message := disk_fault(error):
        return DiskError(message)
    if message := memory_fault(error):
        return MemoryFull(message)
    if message := gpu_fault(error):
        return GpuFailed(message)
    return None


def report(problems: Sequence[Problem]) -> None:
    """Write `problems` to the file that PROBLEM names, if any. The caller created it, so a full disk has room for it."""
    if path := os.environ.get(PROBLEM):
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                text = json.dumps([asdict(problem) for problem in problems]).encode()
                os.ftruncate(file, os.write(file, text))
            finally:
                os.close(file)


def disk_fault(error: BaseException | None) -> str:
    """A disk error as one line for the user; empty for any other error. Libraries wrap it, so causes are searched."""
    if error is None:
        return ""
    place, (reason, remedy) = "disk", parse_disk_fault(str(error))
    if isinstance(error, OSError) and error.errno in REMEDIES:
        reason, remedy = str(error.strerror), REMEDIES[error.errno]
        written = error.filename2 if remedy == ROOM else None  # of a copy
        place = str(written or error.filename or place)
    if not reason:
        return disk_fault(error.__cause__ or error.__context__)
    return f"{place}: {reason}; no partial output was kept, {remedy} and run again"


def parse_disk_fault(text: str) -> tuple[str, str]:
    """The fault that a line reports, a full or failing disk, and the remedy; both empty for any other line."""
    if FULL_WORDS.search(text):
        return FULL, REMEDIES[errno.ENOSPC]
    return (FAILING, REMEDIES[errno.EIO]) if FAILING_WORDS.search(text) else ("", "")


def memory_fault(error: BaseException | None) -> str:
    """A full GPU memory as one line for the user; empty for any other error. Detected by the messages of PyTorch, NCCL, or faiss."""
    message = _first_match(OUT_OF_MEMORY, error)
    return message and (
        f"{message}: lower batch_tokens of this stage (params.yaml) and graph_tokens (runtime.yaml), or stop other processes on the GPU; "
        "a training resumes from its last checkpoint"
    )


def gpu_fault(error: BaseException | None) -> str:
    """A failing GPU as one line for the user; empty for any other error. Detected by the driver's message."""
    message = _first_match(GPU_FAULT, error)
    return message and f"{message}: see nvidia-smi, and run again or on another GPU; a training resumes from its last checkpoint"


def _first_match(words: re.Pattern[str], error: BaseException | None) -> str:
    """The first match of `words` in an error or its causes; empty if there is none."""
    while error is not None:
        if match := words.search(str(error)):
            return match[0]
        error = error.__cause__ or error.__context__
    return ""


def redacted(text: str) -> str:
    """`text` without the passwords and tokens in its URLs, for lines that are printed or stored."""
    return SIGNATURES.sub(r"\1***", CREDENTIALS.sub("***@", text))


def escaped(text: str) -> str:
    """`text` with its control characters written out (`\\x1b`), so that a title or an id cannot redraw a terminal or forge a log line.

    Tabs and newlines stay; whoever prints data as one line must remove them.
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable(text: str) -> str:
    """`text` as it may be shown or logged: no secrets from URLs, no control characters."""
    return escaped(redacted(text))
