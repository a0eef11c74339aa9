"""Count documents with the title and text of an earlier one, up to case and blanks (tasks.core.text.plain).

To digest all texts would take a tenth of the time of preparing a corpus. So each document first gets a sketch of 8 bytes: the number of
words in its text, and a checksum of some of them, ignoring case. Copies have equal sketches. Only documents that share a sketch are read
again, from the written file, and compared by 64-bit digests of title and text. Different documents pass for equal as rarely as different
ids do (tasks.core.tables.id_sets).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.tables.id_sets import Hashes, hashes
from tasks.core.tables.parquet import open_parquet, parquet_errors
from tasks.core.text.plain import plain
from tasks.prepare.source import Document

SAMPLED = 4  # words of a text in its sketch; up to 7, as every n-th is taken


def sketch_documents(documents: Iterable[Document]) -> tuple[list[int], Hashes]:
    """The number of words of each text, and the sketches. For a document without text, the title is sketched."""
    counts, checksums = list[int](), list[int]()
    for _, _, title, text in documents:
        words = text.split()
        count = len(words)
        counts.append(count)
        sample = words[:: count // SAMPLED or 1] if words else title.split()
        checksums.append(crc32("".join(sample).casefold().encode()))
    return counts, np.array(counts, dtype=np.uint64) << np.uint64(32) | np.array(checksums, dtype=np.uint64)


def count_copies(documents: Path, sketches: Sequence[Hashes]) -> int:
    """The number of rows in a file of documents that copy an earlier row. `sketches`: those of its rows, in order."""
    all_sketches = np.concatenate(sketches)
    shared = _repeated(all_sketches)
    if not len(shared):
        return 0
    digest_parts = [all_sketches[:0]]
    start = 0
    with parquet_errors(documents), open_parquet(documents) as file:
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            is_shared = _among(all_sketches[start:end], shared)
            if is_shared.any():
                table = file.read_row_group(group, columns=["title", "text"], use_threads=False)
                digest_parts.append(_digests(table.filter(pa.array(is_shared))))
            start = end
    digests = np.concatenate(digest_parts)
    return len(digests) - len(np.unique(digests))


def _repeated(values: Hashes) -> Hashes:
    """The values that occur more than once, ascending."""
    ordered = np.sort(values)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _among(values: Hashes, shared: Hashes) -> npt.NDArray[np.bool_]:
    """A mask of the `values` that are in `shared`, which is ascending."""
    mask: npt.NDArray[np.bool_] = shared[np.minimum(np.searchsorted(shared, values), len(shared) - 1)] == values
    return mask


def _digests(table: pa.Table) -> Hashes:
    pairs = zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
    return hashes([f"{plain(title)}\0{plain(text)}" for title, text in pairs])
