"""The pages of a source that is already plain text: the demo, Parquet, JSON lines. One batch or line is in memory at a time."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tasks.articles.pages import Page
from tasks.core.errors import UserError
from tasks.core.files import open_unpacked, read_json
from tasks.core.tables.parquet import BATCH_ROWS, UNREADABLE, open_parquet, refuse_damage

FIELDS = ("id", "title", "text")


def read_demo(path: Path) -> Iterator[Page]:
    """The leads of the demo's articles, {title: {"extract", ...}}."""
    for title, article in read_json(path).items():
        yield Page("_".join(title.split()), title, article["extract"])


def read_parquet(path: Path) -> Iterator[Page]:
    """Rows of id, title, text; other columns are ignored."""
    try:
        with open_parquet(path) as file:
            if missing := [name for name in FIELDS if name not in file.schema_arrow.names]:
                raise UserError(
                    f"{path}: found columns {', '.join(file.schema_arrow.names)}, expected id, title, and text; {missing[0]} is missing"
                )
            if repeated := [name for name in FIELDS if file.schema_arrow.names.count(name) > 1]:
                raise UserError(f"{path}: found column {repeated[0]} more than once, expected it once; rename or drop one")
            for batch in file.iter_batches(BATCH_ROWS // 8, columns=list(FIELDS)):
                columns = [batch[name].cast(pa.string()).to_pylist() for name in FIELDS]
                yield from (Page(id_ or "", title or "", text or "") for id_, title, text in zip(*columns, strict=True))
    except UNREADABLE as error:
        refuse_damage(error, f"{path}: cannot be read as Parquet of id, title, text ({error}); download it again")


def read_jsonl(path: Path) -> Iterator[Page]:
    """Objects with text, and optionally title and id (or _id; else the line number). The file is plain or gzip, by its first bytes."""
    number = 0
    try:
        with open_unpacked(path) as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield _page(line, f"{path}:{number}", str(number))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}:{number + 1}: the gzip file is truncated or corrupt here ({error}); download it again") from None


def _page(line: bytes, at: str, number: str) -> Page:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at}: not JSON ({error}), expected an object with id, title, text; fix that line") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise UserError(f"{at}: found {line[:60].decode('utf-8', 'replace')!r}, expected an object with id, title, text; fix that line")
    id_ = next((value[name] for name in ("id", "_id") if value.get(name) is not None), number)
    page = Page(str(id_), str(value.get("title") or ""), value["text"])
    for name, text in zip(FIELDS, (page.id, page.title, page.text), strict=True):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(
                f"{at}: the {name} contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text; fix that line"
            )
    return page
