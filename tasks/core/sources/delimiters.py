"""The delimiter of a table in CSV, by its name and its header alone: one rule for all that read, check, or rewrite such a file.

    NAME.tsv, NAME.tsv.gz   a tab
    any other name          a semicolon where the header has semicolons and no commas, else a comma; both in one header are refused

The header is the first line with more than blanks and delimiters, and the lines after it up to the end of a quoted cell that it
leaves open. What is in quotes is not looked at.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tasks.core.stage.errors import Invalid

NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
EITHER = "commas or semicolons"
BLANK = ' \t\r\n\v\f",;\ufeff'
MOST = 100  # lines of one header; a quote that stays open longer is not closed at all
SHOWN = 60  # characters of a header that a message quotes
_QUOTED = re.compile(r'(?:\A|(?<=[,;]))"(?:[^"]|"")*("|\Z)')


def is_tabbed(path: Path) -> bool:
    """Whether a file's name says that tabs separate its cells."""
    return path.name.removesuffix(".gz").endswith(".tsv")


def delimiter_of(path: Path, lines: Iterable[str]) -> str:
    """The delimiter of the table `path`, whose first `lines` these are; no more of them are read than the header has.

    Invalid, a UserError with its parts, where the header has commas and semicolons.
    """
    if is_tabbed(path):
        return "\t"
    first, header = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if not header and not line.strip(BLANK):
            continue
        first = first or number
        header.append(line)
        if len(header) == MOST or not _left_open("".join(header)):
            break
    bare = _QUOTED.sub("", "".join(header))
    if "," in bare and ";" in bare:
        raise Invalid(
            where=f"{path}:{first}",
            found=f"commas and semicolons in the header ({header[0].strip()[:SHOWN]!r})",
            expected="one of them, between the columns",
            remedy="put a column's name that has the other into quotes, or rename it",
        )
    return ";" if ";" in bare else ","


def _left_open(header: str) -> bool:
    """Whether the last quoted cell has no end."""
    return any(not cell[1] for cell in _QUOTED.finditer(header))
