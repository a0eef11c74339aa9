"""Counts documents whose title and text are those of another one, but for case and blanks (tasks.core.text.plain).

Digests of all texts would take a tenth of the time of a corpus, so a document has a sketch of 8 bytes at first: how many words its text
has, and a checksum of some of them without case. Copies have one sketch. Only documents that share one are read again, from the file that
was written, and compared by 64-bit digests of title and text: two different ones pass for equal as rarely as two ids do
(tasks.core.tables.id_sets).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.tables.id_sets import Hashes, hashes
from tasks.core.tables.parquet import open_parquet, readable
from tasks.core.text.plain import plain
from tasks.prepare.source import Document

SAMPLED = 4  # words of a text that are in its sketch, or up to 7


def sketched(documents: Iterable[Document]) -> tuple[list[int], Hashes]:
    """How many words each text has, and the sketches. A document without text has that of its title."""
    counts, some = list[int](), list[int]()
    for _, _, title, text in documents:
        words = text.split()
        count = len(words)
        counts.append(count)
        sample = words[:: count // SAMPLED or 1] if words else title.split()
        some.append(crc32("".join(sample).casefold().encode()))
    return counts, np.array(counts, dtype=np.uint64) << np.uint64(32) | np.array(some, dtype=np.uint64)


def count_copies(documents: Path, sketches: Sequence[Hashes]) -> int:
    """How many rows of a file of documents are copies of an earlier row; `sketches` are theirs, in the file's order."""
    every = np.concatenate(sketches)
    shared = _repeated(every)
    if not len(shared):
        return 0
    found = [every[:0]]
    start = 0
    with readable(documents), open_parquet(documents) as file:
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            alike = _among(every[start:end], shared)
            if alike.any():
                table = file.read_row_group(group, columns=["title", "text"], use_threads=False)
                found.append(_digests(table.filter(pa.array(alike))))
            start = end
    digests = np.concatenate(found)
    return len(digests) - len(np.unique(digests))


def _repeated(some: Hashes) -> Hashes:
    """The values that are there more than once, ascending."""
    ordered = np.sort(some)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _among(some: Hashes, shared: Hashes) -> npt.NDArray[np.bool_]:
    """Which of `some` are in `shared`, which ascend."""
    found: npt.NDArray[np.bool_] = shared[np.minimum(np.searchsorted(shared, some), len(shared) - 1)] == some
    return found


def _digests(table: pa.Table) -> Hashes:
    pairs = zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
    return hashes([f"{plain(title)}\0{plain(text)}" for title, text in pairs])
