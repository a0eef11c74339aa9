"""Files that are plain or gzip. Their first bytes decide, not their names."""

import gzip
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed with gzip. Raises OSError if it cannot be read."""
    with path.open("rb") as handle:
        return handle.read(len(GZIP)) == GZIP


def open_unpacked(path: Path) -> BinaryIO:
    """A file's bytes, uncompressed. Reading a corrupt gzip file raises EOFError, zlib.error, or gzip.BadGzipFile."""
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else path.open("rb")
