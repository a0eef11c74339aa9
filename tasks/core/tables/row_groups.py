"""A Parquet file in pieces: its row groups, each of which any process can read by itself."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import UserError
from tasks.core.tables.parquet import BATCH_ROWS, open_parquet, parquet_errors


def count_groups(path: Path) -> int:
    """The number of row groups; UserError if the file is missing or corrupt."""
    with parquet_errors(path):
        return int(pq.read_metadata(path).num_row_groups)


def read_group(path: Path, schema: pa.Schema, group: int) -> Iterator[pa.RecordBatch]:
    """The rows of one row group of a file of `schema`, at most BATCH_ROWS at a time; UserError if it has another schema, or is corrupt."""
    with parquet_errors(path), open_parquet(path) as file:
        if not file.schema_arrow.equals(schema):
            raise UserError(f"{path}: found columns {file.schema_arrow.names}, expected {schema.names}; re-run the stage that makes it")
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group])
