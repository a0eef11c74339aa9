"""The list of forgotten records: a file of the project, in git, that holds neither texts nor ids.

A line is a kind (document or query), the SHA-256 of kind and id, and a date: `document 5f3a... 2026-11-24`. `retemper forget` adds lines;
prepare excludes these records, whatever source brings them again.
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from tasks.core.errors import UserError

Kind = Literal["document", "query"]
KINDS: tuple[Kind, ...] = ("document", "query")
FILE = Path("forgotten.txt")
HEAD = "# Records that prepare leaves out: kind, SHA-256 of kind and id, date. Written by retemper forget; keep it in git.\n"
LINE = re.compile(r"(document|query) ([0-9a-f]{64})( (?!.*[0-9a-f]{64}).*)?")  # a second hash is a lost line break


def mark(kind: str, record: str) -> str:
    """The list's entry for a record, in place of its id: SHA-256, in hexadecimal."""
    return hashlib.sha256(f"{kind}\0{record}".encode("utf-8", "surrogatepass")).hexdigest()


def text_of(text: str, title: str) -> str:
    """What a record is found by: its text, or its title if the text is blank. Blank if both are; then nothing can be found by it."""
    return text if text.strip() else title


def read_marks(path: Path = FILE) -> dict[str, Kind]:
    """The marks of the list, with their kinds; empty if there is no list. UserError for an invalid line."""
    marks: dict[str, Kind] = {}
    for number, line in record_lines(path) if path.exists() else []:
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise UserError(
                f"{path}:{number}: found {line[:60]!r}, expected a kind, a SHA-256, and a date; fix or remove that line "
                f"(git diff {path} shows what changed)"
            )
        marks[match[2]] = "document" if match[1] == "document" else "query"
    return marks


def record_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a list that name records, with their numbers. UserError if the file is not UTF-8."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # editors may begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]


def marks_digest(marks: Collection[str]) -> str:
    """One digest of the marks, in any order; empty if there are none, so that nothing changes for a project without a list."""
    return hashlib.sha256("\n".join(sorted(marks)).encode()).hexdigest() if marks else ""
