"""The delimiter of a table in CSV, by its name and its header alone: one rule for all that read, check, or rewrite such a file.

    NAME.tsv, NAME.tsv.gz   a tab, whatever the case of the ending
    any other name          a semicolon where the header has semicolons and no commas, else a comma

In any file, a first line sep=; names the delimiter, as Excel reads and some programs write it; it is not a row. The header is the first
line with more than blanks and delimiters, and the lines after it up to the end of a quoted cell that it leaves open. Quoted text is
ignored. If a header has commas and semicolons, those before a blank are punctuation (price, with tax); if both also come without a blank,
it is refused.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from tasks.core.errors import Invalid

NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
EITHER = "commas or semicolons"
BLANK = ' \t\r\n\v\f",;\ufeff'
LARGEST_CELL = 1 << 28  # characters; csv's own limit of 131,072 is too small for a long document
MOST = 100  # lines of one header; a quote that stays open longer is not closed at all
SHOWN = 60  # characters of a header that a message quotes
DECLARATION = re.compile(r"(\"?)sep=([,;\t|])\1", re.IGNORECASE)
PUNCTUATION = re.compile(r"[,;](?=[ \t])")
_QUOTED = re.compile(r'(?:\A|(?<=[,;]))"(?:[^"]|"")*("|\Z)')


def is_tabbed(path: Path) -> bool:
    """Whether a file's name says that tabs separate its cells."""
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def delimiter_of(path: Path, lines: Iterable[str]) -> str:
    """The delimiter of the table `path`, whose first lines are `lines`; only the header's are read.

    Invalid, a UserError with its parts, if the header has commas and semicolons, and no blanks show which are punctuation.
    """
    first, header = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if number == 1 and (delimiter := _declared(line)):
            return delimiter
        if is_tabbed(path):
            return "\t"
        if not header and not line.strip(BLANK):
            continue
        first = first or number
        header.append(line)
        if len(header) == MOST or not _left_open("".join(header)):
            break
    if is_tabbed(path):
        return "\t"
    unquoted = _QUOTED.sub("", "".join(header))
    has_both = "," in unquoted and ";" in unquoted
    marks = {*(PUNCTUATION.sub("", unquoted) if has_both else unquoted)} & {*",;"}
    if has_both and len(marks) != 1:
        raise Invalid(
            where=f"{path}:{first}",
            found=f"commas and semicolons in the header ({header[0].strip()[:SHOWN]!r})",
            expected="one of them, between the columns",
            remedy="quote or rename a column whose name contains the other, or begin the file with a line sep=; (or sep=,)",
        )
    return ";" if ";" in marks else ","


def declares_delimiter(cells: Sequence[str], delimiter: str) -> bool:
    """Whether the first row of a table is not data, but names the delimiter."""
    return _declared(delimiter.join(cells)) == delimiter


def seek_header(handle: IO[str]) -> int:
    """Seek to the first line of a file that is a row; return how many lines there are before it."""
    handle.seek(0)
    if _declared(handle.readline()):
        return 1
    handle.seek(0)
    return 0


def _declared(line: str) -> str:
    match = DECLARATION.fullmatch(line.strip(" \r\n\ufeff"))
    return match[2] if match else ""


def _left_open(header: str) -> bool:
    """Whether the last quoted cell is not closed."""
    return any(not cell[1] for cell in _QUOTED.finditer(header))
