"""Mined tables, in parts of the queries: a kill loses only the part in progress."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.stage.files import new_file
from tasks.core.stage.scratch import seal, sealed
from tasks.core.tables.schemas import RANKED

Floats = npt.NDArray[np.float32]


class Pieces:
    """Finished parts are in `folder` and reused if intact; without a folder, everything is passed through."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def array(self, name: str, make: Callable[[], Floats]) -> Floats:
        """The array that `make` returns, or the stored one."""
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.npy"
        if not sealed(path):
            with new_file(path) as temporary, temporary.open("wb") as handle:
                np.save(handle, make())
            seal(path)
        found: Floats = np.load(path, allow_pickle=False)
        return found

    def part(self, first: int, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """`tables` (RANKED) of the queries from `first` on, with the same boundaries; evaluated only if not finished."""
        if self.folder is None:
            yield from tables
            return
        path = self.folder / f"{first:09}.parquet"
        if not sealed(path):
            with new_file(path) as temporary, pq.ParquetWriter(temporary, RANKED, compression="zstd") as writer:
                for table in tables:
                    writer.write_table(table, row_group_size=max(1, len(table)))  # a table is a group: whole queries stay together
            seal(path)
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)
