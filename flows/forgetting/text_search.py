"""Look for texts in files, regardless of lineage: the check that nothing was left, and a safety net for what lineage misses."""

import gzip
import html
import json
import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.parquet import open_parquet

LEAST, LONGEST = 24, 60  # characters of a text's start that are searched as bytes; a text shorter than LEAST is found only in Parquet cells
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
UNSEEN = (".git", ".venv", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Needles:
    """What to look for: whole cells of Parquet tables, and as bytes the start of each text as plain text, JSON, and HTML."""

    cells: pa.Array
    starts: tuple[bytes, ...]


def needles(texts: Iterable[str]) -> Needles:
    """The needles that find these texts."""
    texts = sorted(texts)
    starts = [text.strip()[:LONGEST] for text in texts if len(text.strip()) >= LEAST]
    forms = {form.encode() for start in starts for form in (start, json.dumps(start)[1:-1], html.escape(start))}
    return Needles(pa.array(texts, pa.string()), tuple(sorted(forms)))


def contains_any(path: Path, wanted: Needles) -> bool:
    """Whether a file has one of the texts. Parquet and gzip are unpacked; an invalid one is searched as bytes."""
    if not len(wanted.cells):
        return False
    with path.open("rb") as handle:
        magic = handle.read(4)
        if magic == PARQUET:
            with suppress(pa.ArrowException):
                return _in_parquet(path, wanted)
        if magic[:2] == GZIP:
            with suppress(OSError, EOFError), gzip.open(path) as packed:
                return any(start in line for line in packed for start in wanted.starts)
        if not magic:
            return False
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(start) >= 0 for start in wanted.starts)


def _in_parquet(path: Path, wanted: Needles) -> bool:
    with open_parquet(path) as file:
        columns = [field.name for field in file.schema_arrow if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
        return any(
            pc.any(pc.is_in(batch[name].cast(pa.string()), value_set=wanted.cells)).as_py()
            for batch in file.iter_batches(columns=columns)
            for name in columns
        )


def files_below(folder: Path, but: Collection[Path] = ()) -> Iterator[Path]:
    """Every file below a folder, without links. Git's folder, environments, and the folders of `but` are not entered."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in UNSEEN and Path(place, name) not in but]
        yield from (path for name in names if (path := Path(place, name)).is_file() and not path.is_symlink())


def files_with_texts(folder: Path, wanted: Needles, but: Collection[Path] = ()) -> Iterator[Path]:
    """The files below a folder that have one of the texts; unreadable ones are skipped."""
    for path in files_below(folder, but):
        with suppress(OSError, ValueError):
            if contains_any(path, wanted):
                yield path
