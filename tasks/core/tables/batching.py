"""Rows in batches of bounded size: small batches are joined, large ones are split."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

JOINED_BYTES = 2**26
TEXT_BYTES = 2**24  # of text at a time; a tokenizer's output takes about 20 times as much


def join_batches(parts: Iterable[pa.RecordBatch | pa.Table], rows: int, size: int = JOINED_BYTES) -> Iterator[pa.Table]:
    """`parts`, in order, joined into tables; each ends with the part that reaches `rows` rows or `size` bytes."""
    pending, count, total = list[pa.Table](), 0, 0
    for part in parts:
        pending.append(part if isinstance(part, pa.Table) else pa.Table.from_batches([part]))
        count, total = count + part.num_rows, total + part.nbytes
        if count >= rows or total >= size:
            yield pa.concat_tables(pending)
            pending, count, total = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def split_batch(batch: pa.RecordBatch, columns: list[str], size: int = TEXT_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of `batch`, in order, with at most `size` bytes of text in `columns` at a time; a longer row comes alone."""
    lengths = sum(pc.binary_length(batch[name]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) for name in columns)
    ends = np.cumsum(lengths)
    start = 0
    while start < batch.num_rows:
        previous_end = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, previous_end + size, side="right")))
        yield batch.slice(start, end - start)
        start = end
