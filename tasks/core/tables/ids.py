"""Ids of documents and queries: their tables and ordinals."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.parquet import count_rows, open_parquet, parquet_errors, read_table

IDS = pa.schema([("id", pa.string())])
ID_BATCH = 2**13, 2**17  # ids read at a time: as many as are looked for, but no fewer and no more than these
MOST_BYTES = 2**31 - 1
Ints = npt.NDArray[np.int64]


def concat_ranges(starts: Ints | int, sizes: Ints) -> Ints:
    """For each start and size, the numbers `start` to `start + size - 1`, one run after another."""
    ends: Ints = sizes.cumsum()
    shifts: Ints = starts - ends + sizes
    runs: Ints = np.repeat(shifts, sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
    return runs


def read_ids(path: Path) -> pa.Array:
    """The `id` column of a Parquet file of ids, as one array: of large strings if they have more bytes than an array of strings can."""
    ids = read_table(path, IDS)["id"]
    return (ids.cast(pa.large_string()) if ids.nbytes > MOST_BYTES else ids).combine_chunks()


def ordinals(needed: pa.ChunkedArray, path: Path) -> Ints:
    """The ordinal of each id of `needed` among the ids of a Parquet file, -1 if missing; ids are read a part at a time."""
    unique = needed.dictionary_encode().unify_dictionaries()
    if not unique.num_chunks:
        return np.empty(0, dtype=np.int64)
    wanted = unique.chunk(0).dictionary
    id_rows = np.full(len(wanted), -1, dtype=np.int64)
    start, size = 0, min(max(len(wanted), ID_BATCH[0]), ID_BATCH[1])
    with parquet_errors(path):
        for batch in open_parquet(path).iter_batches(size, columns=["id"]):
            place = pc.index_in(wanted, value_set=batch["id"])
            present = place.is_valid().to_numpy(zero_copy_only=False)
            id_rows[present] = place.drop_null().to_numpy() + start
            start += batch.num_rows
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in unique.chunks])
    rows: Ints = id_rows[codes]
    return rows


@dataclass(frozen=True)
class StoredIds:
    """The `id` column of a Parquet file, read on demand: only the requested ids of a corpus are in memory."""

    path: Path

    def __len__(self) -> int:
        return count_rows(self.path)

    def slice(self, start: int, count: int) -> pa.Array:
        """Ids `start` to `start + count`, fewer at the end."""
        return self.take(pa.array(np.arange(start, min(start + count, len(self)))))

    def take(self, wanted: pa.Array) -> pa.Array:
        """The ids at the ordinals `wanted`, in their order; reads only the row groups that contain them."""
        unique, places = np.unique(wanted.to_numpy(zero_copy_only=False).astype(np.int64), return_inverse=True)
        parts = [pa.array([], pa.string())]
        with parquet_errors(self.path), open_parquet(self.path) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            firsts = np.searchsorted(unique, np.concatenate([[0], ends]))  # of each group's wanted ones
            for group in np.flatnonzero(np.diff(firsts)).tolist():
                group_rows = unique[firsts[group] : firsts[group + 1]] - (ends[group - 1] if group else 0)
                parts.append(file.read_row_group(group, columns=["id"])["id"].combine_chunks().take(pa.array(group_rows)))
        return pa.concat_arrays(parts).take(pa.array(places))
