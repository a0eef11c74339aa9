"""Rows of a file: JSON lines (plain or gzip), Parquet, or lines of text, each with its place: FILE:LINE, or FILE:ROW for Parquet."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from flows.batches.records import lines, objects
from tasks.core.errors import UserError

Row = dict[str, Any]
PARQUET = b"PAR1"  # first bytes of a file
ASCII_WORDS = re.compile(r"[^ \t\n\r\f\v]+")
PARQUET_ROWS = 1024  # rows in memory at a time; some files also have images, in columns that are not read


def refuse(line: str) -> NoReturn:
    """Raise UserError for a malformed line."""
    raise UserError(f"{line}; fix the file")


def keys(path: Path, expected: str) -> tuple[str, list[str]]:
    """The place of a file's first row, and its keys in order. `expected`: the keys it should have. Raises UserError for an empty file."""
    if is_parquet(path):
        return f"{path}:1", _columns(path)
    for at, row in objects(path, expected, refuse):
        return at, list(row)
    raise UserError(f"{path}: found no line, expected JSON lines with {expected}")


def rows(path: Path, expected: str, wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Every row with its place; from Parquet, only the `wanted` columns. Raises UserError, with the place, for an unreadable row."""
    return _parquet(path, wanted) if is_parquet(path) else objects(path, expected, refuse)


def cells(path: Path, names: tuple[str, ...], separator: str | None) -> Iterator[tuple[str, list[str]]]:
    """Lines with exactly the columns `names`, separated by `separator`, or by blanks and tabs if that is None.

    An id may contain other spaces."""
    for number, line in lines(path, refuse):
        at, values = f"{path}:{number}", line.split(separator) if separator else ASCII_WORDS.findall(line)
        if len(values) != len(names):
            between = "tabs" if separator else "blanks or tabs"
            expected = f"{len(names)} separated by {between} ({', '.join(names)})"
            refuse(f"{at}: found {len(values)} column{'s' * (len(values) != 1)}, expected {expected}")
        yield at, values


def is_json(path: Path) -> bool:
    """Whether the first line that is not blank begins an object."""
    return next((line.lstrip().startswith("{") for _, line in lines(path, refuse)), False)


def is_parquet(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(len(PARQUET)) == PARQUET


def _columns(path: Path) -> list[str]:
    from tasks.core.tables.parquet import UNREADABLE, open_parquet, refuse_damage

    try:
        with open_parquet(path) as file:
            names = list(file.schema_arrow.names)
    except UNREADABLE as error:
        refuse_damage(error, f"{path}: cannot be read as Parquet ({error}); write it again")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        refuse(f"{path}: found column {repeated} {names.count(repeated)} times, expected it once")
    return names


def _parquet(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
    from tasks.core.tables.parquet import UNREADABLE, open_parquet, refuse_damage

    number = 0
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS, columns=[name for name in file.schema_arrow.names if name in wanted]):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except UNREADABLE as error:
        refuse_damage(error, f"{path}: cannot be read as Parquet with UTF-8 texts after row {number} ({error}); write it again")
