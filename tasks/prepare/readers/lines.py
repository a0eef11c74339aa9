"""Lines of text files, plain or gzip; errors name the file and line. One line, or one block of lines, is in memory at a time."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import UserError
from tasks.core.files import open_unpacked
from tasks.core.sources.grades import EXPECTED, is_grade
from tasks.core.sources.json_lines import Repeated, parse_line
from tasks.core.sources.qrels import EXPECTED_WEIGHT, weight_of
from tasks.prepare.source import At

BOM = b"\xef\xbb\xbf"
SHOWN = 60  # characters of a wrong line that a message quotes
BLOCK = 1 << 22  # bytes of lines that one process reads at a time


class Lines(NamedTuple):
    """Lines of a file, from line number `first` on: the lines in `raw`, or if it is None, the rest of the file."""

    path: Path
    first: int = 1
    raw: bytes | None = None


def blocks(path: Path, size: int = BLOCK) -> Iterator[Lines]:
    """Cut a file into blocks of whole lines, of about `size` bytes. If reading fails, the last block stands for the rest, still unread."""
    first, waiting = 1, b""
    try:
        with open_unpacked(path) as handle:
            while chunk := handle.read(size):
                end = chunk.rfind(b"\n") + 1
                if end:
                    block = waiting + chunk[:end]
                    yield Lines(path, first, block)
                    first, waiting = first + block.count(b"\n"), b""
                waiting += chunk[end:]
    except (OSError, EOFError, zlib.error):
        yield Lines(path, first)
        return
    if waiting:
        yield Lines(path, first, waiting)


def read_lines(source: Path | Lines) -> Iterator[tuple[At, str]]:
    """Every line that is not blank, decoded, without its line end. A gzip file is detected by its first bytes, not by its name."""
    lines = source if isinstance(source, Lines) else Lines(source)
    for number, text in enumerate(read_text_lines(lines), lines.first):
        line = text.rstrip("\r\n")
        if line.strip():
            yield At(lines.path, number), line


def read_text_lines(source: Path | Lines) -> Iterator[str]:
    """Every line, decoded, with its line end."""
    path, first, block = source if isinstance(source, Lines) else Lines(source)
    number = 0 if block is None else first - 1
    try:
        with open_unpacked(path) if block is None else io.BytesIO(block) as handle:
            for raw in handle:
                number += 1
                if number == 1:
                    raw = raw.removeprefix(BOM)
                if number >= first:
                    yield _decode(raw, path, number)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; add it or fix the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: found a folder, expected a file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}:{number + 1}: the gzip file is truncated or corrupt here ({error}); download it again") from None


def read_objects(source: Path | Lines, expected: str) -> Iterator[tuple[At, dict[str, Any]]]:
    """The objects of a file of JSON lines. `expected` names the fields that they should have, for errors."""
    for at, line in read_lines(source):
        try:
            value = parse_line(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{at}: not JSON ({error.msg}, column {error.colno}), expected an object with {expected}; fix that line"
            ) from None
        except Repeated as error:
            raise UserError(f"{at}: {error}, expected it once; fix that line") from None
        except ValueError:  # beyond Python's limit on the digits of an integer
            raise UserError(f"{at}: found a number with thousands of digits, expected an object with {expected}; fix that line") from None
        except RecursionError:
            raise UserError(f"{at}: JSON nested too deeply, expected an object with {expected}; fix that line") from None
        if not isinstance(value, dict):
            raise UserError(f"{at}: found a JSON {type(value).__name__}, expected an object with {expected}; fix that line")
        yield at, value


def read_columns(source: Path | Lines, names: tuple[str, ...]) -> Iterator[tuple[At, list[str]]]:
    """The cells of tab-separated lines. UserError for a line that does not have exactly the columns `names`."""
    for at, line in read_lines(source):
        cells = line.split("\t")
        if len(cells) != len(names):
            raise UserError(
                f"{at}: {_describe(line, len(cells))}, expected {len(names)} separated by tabs ({', '.join(names)}); fix that line"
            )
        yield at, cells


def grade(at: At, cell: str) -> int:
    """Parse a relevance grade, an integer; above 0 is relevant. UserError if it is not valid."""
    if not is_grade(cell):
        raise UserError(f"{at}: found grade {cell!r}, expected {EXPECTED}; fix that line")
    return int(cell)


def weight(at: At, cell: str) -> float:
    """Parse a pair's weight in training, a number above 0. UserError if it is not valid."""
    if (value := weight_of(cell)) is None:
        raise UserError(f"{at}: found weight {cell!r}, expected {EXPECTED_WEIGHT}; fix that line")
    return value


def _describe(line: str, cells: int) -> str:
    if cells == 1 and "," in line:
        return f"found commas and no tabs ({line[:SHOWN]!r})"
    return f"found {cells} column{'s' if cells > 1 else ''} ({line[:SHOWN]!r})"


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8 at byte {error.start + 1} of the line; save the file as UTF-8") from None
