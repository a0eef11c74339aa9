"""CSV that people or other programs fill in, row by row."""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import UserError
from tasks.core.sources.delimiters import LARGEST_CELL, delimiter_of, seek_header


class Row(NamedTuple):
    at: str  # FILE:LINE of its end
    cells: dict[str | None, Any]  # by column; None: those beyond the columns, if there are any
    delimiter: str


def csv_rows(path: Path, columns: Sequence[str], expected: str, *, optional: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a CSV file with a header, plain or .gz.

    Raises UserError if one of `columns` is missing, which tells what is `expected`, if one of these or of the
    `optional` ones is there twice, or if the file or a row cannot be read.
    """
    csv.field_size_limit(LARGEST_CELL)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as handle:
            delimiter = delimiter_of(path, handle)
            lines_before = seek_header(handle)
            reader = csv.DictReader(handle, delimiter=delimiter, strict=True)
            if missing := [name for name in columns if name not in (reader.fieldnames or [])]:
                raise UserError(f"{path}:{lines_before + 1}: no column {', '.join(missing)}, expected {expected}")
            header = [*(reader.fieldnames or [])]
            if repeated := [name for name in (*columns, *optional) if header.count(name) > 1]:
                raise UserError(
                    f"{path}:{lines_before + 1}: found column {repeated[0]} {header.count(repeated[0])} times, expected it once; rename or "
                    "remove the others"
                )
            for cells in reader:
                yield Row(f"{path}:{lines_before + reader.line_num}", cells, delimiter)
    except csv.Error as error:
        raise UserError(
            f"{path}:{lines_before + reader.line_num + 1}: cannot be read ({error}), expected CSV in the row that begins here; fix it"
        ) from None
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}), expected CSV in UTF-8, gzip if its name ends in .gz") from None
