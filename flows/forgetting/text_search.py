"""Look for texts in files, regardless of lineage: the check that nothing was left, and a safety net for what lineage misses."""

import gzip
import html
import json
import mmap
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import markupsafe
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.parquet import UNREADABLE, open_parquet

LEAST, LONGEST = 24, 60  # characters of a text's start that are searched as bytes; a text shorter than LEAST is found only in Parquet cells
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
BLOCK = 1 << 20  # bytes of an unpacked file that are searched at a time
TEXT_TYPES = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
ESCAPE = re.compile(r"\\u([0-9a-f]{4})")  # of json.dumps
UNSEEN = (".git", ".venv", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Needles:
    """What to look for, as bytes: whole cells of Parquet tables, and the start of each text, in every form of `_forms`.

    `long_cells`: those of LEAST characters or more, which alone count in lists and records. An answer of one word says nothing.
    """

    cells: pa.Array
    long_cells: pa.Array
    starts: tuple[bytes, ...]


def needles(texts: Iterable[str], *, whole: bool = False) -> Needles:
    """The needles that find these texts; with `whole`, not by their start alone. None for a blank text, which any table may have."""
    texts = sorted(filter(str.strip, texts))
    long_texts = [text for text in texts if len(text.strip()) >= LEAST]
    written = {text.strip() for text in long_texts}
    shown = {line for text in long_texts if len(line := " ".join(text.split())) >= LEAST}  # on pages (tables.documents.shortened)
    forms = {form for text in written | shown for form in _forms(text[: None if whole else LONGEST])}
    return Needles(as_cells(texts), as_cells(long_texts), tuple(sorted(forms)))


def as_cells(texts: Iterable[str]) -> pa.Array:
    """Texts as bytes, to be compared with columns of any type of text. One of the user's own files may have half a character."""
    return pa.array([text.encode(errors="surrogatepass") for text in texts], pa.binary())


def _forms(text: str) -> set[bytes]:
    """A text in UTF-8, as it is in plain files, JSON, CSV, and HTML; our own pages write quotes in another way than others.

    In JSON, PHP escapes slashes, and .NET and Java write escapes in capitals.
    """
    escaped, plain = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    capitals = ESCAPE.sub(lambda match: f"\\u{match[1].upper()}", escaped)
    in_json = (escaped, plain, capitals, *(form.replace("/", "\\/") for form in (escaped, plain)))
    in_html = html.escape(text), str(markupsafe.escape(text))
    return {form.encode(errors="surrogatepass") for form in (text, *in_json, text.replace('"', '""'), *in_html)}


def contains_any(path: Path, wanted: Needles) -> bool:
    """Whether a file has one of the texts. Parquet and gzip are unpacked; a corrupt one is searched as bytes.

    OSError if it cannot be read, ValueError if it is corrupt and nothing was found in its bytes.
    """
    if not len(wanted.cells):
        return False
    with path.open("rb") as handle:
        magic = handle.read(4)
        corrupt: Exception | None = None
        try:
            if magic == PARQUET:
                return _in_parquet(path, wanted)
            if magic[:2] == GZIP:
                return _in_gzip(path, wanted.starts)
        except (*UNREADABLE, EOFError, zlib.error) as error:
            corrupt = error
        if not magic:
            return False
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if any(content.find(start) >= 0 for start in wanted.starts):
                return True
    if corrupt:
        raise ValueError(f"{path}: corrupt") from corrupt
    return False


def _in_gzip(path: Path, starts: Collection[bytes]) -> bool:
    overlap = max(map(len, starts), default=1) - 1
    with gzip.open(path) as packed:
        before = b""
        while block := packed.read(BLOCK):
            block = before + block
            if any(start in block for start in starts):
                return True
            before = block[-overlap:] if overlap else b""
    return False


def _in_parquet(path: Path, wanted: Needles) -> bool:
    with open_parquet(path) as file:
        columns = [field.name for field in file.schema_arrow if _has_text(field.type)]
        return any(_in_column(batch[name], wanted.cells, wanted) for batch in file.iter_batches(columns=columns) for name in columns)


def _has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings, or bytes, which some writers do not mark as strings, at any depth."""
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(index).type) for index in range(kind.num_fields))
    return any(is_kind(kind) for is_kind in TEXT_TYPES)


def _in_column(column: pa.Array, cells: pa.Array, wanted: Needles) -> bool:
    """Whether one of `cells` is in a column, or one of the long texts in the lists or records that it is made of."""
    if not _has_text(column.type):
        return False
    if pa.types.is_dictionary(column.type):
        return _in_column(column.dictionary, cells, wanted)
    if pa.types.is_map(column.type):
        return any(_in_column(part, wanted.long_cells, wanted) for part in (column.keys, column.items))
    if pa.types.is_nested(column.type):
        parts = column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]
        return any(_in_column(part, wanted.long_cells, wanted) for part in parts)
    return bool(pc.any(pc.is_in(column.cast(pa.binary()), value_set=cells)).as_py())


def files_below(folder: Path, but: Collection[Path] = ()) -> Iterator[Path]:
    """Every file below a folder, without links. Git's folder, environments, and the folders of `but` are not entered."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in UNSEEN and Path(place, name) not in but]
        yield from (path for name in names if (path := Path(place, name)).is_file() and not path.is_symlink())


def having_texts(paths: Iterable[Path], wanted: Needles, unreadable: Callable[[Path], None]) -> Iterator[Path]:
    """The files that have one of the texts. `unreadable` gets the unreadable and corrupt ones; a file that is gone meanwhile has none."""
    for path in paths:
        try:
            if contains_any(path, wanted):
                yield path
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            unreadable(path)
