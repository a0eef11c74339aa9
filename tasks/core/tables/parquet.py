"""Read and write Parquet, a batch at a time; a file is complete or absent."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import UserError
from tasks.core.files import new_file

BATCH_ROWS = 8192
UNREADABLE = (pa.ArrowException, UnicodeDecodeError, OSError)  # Arrow reports corruption as any of these; the OSError has no errno


def write_table(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Write `batches` of `schema` to a Parquet file as they arrive; returns the number of rows."""
    rows = 0
    with new_file(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
    return rows


def open_parquet(source: Path | BinaryIO) -> pq.ParquetFile:
    """Open a Parquet file to read it a part at a time. By default, Arrow would keep the bytes of all parts until it is closed."""
    return pq.ParquetFile(source, pre_buffer=False)


def read_batches(path: Path, schema: pa.Schema, columns: list[str] | None = None, *, group: int | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file of `schema`, or of one row group of it, at most BATCH_ROWS at a time.

    Raises UserError if the file is missing or corrupt, or has another schema.
    """
    with parquet_errors(path), open_parquet(path) as file:
        if not file.schema_arrow.equals(schema):
            raise UserError(f"{path}: found columns {file.schema_arrow.names}, expected {schema.names}; re-run the stage that makes it")
        yield from file.iter_batches(BATCH_ROWS, columns=columns, row_groups=None if group is None else [group])


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Within this context, a missing or corrupt Parquet file raises a UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run the stage that makes it") from None
    except UNREADABLE as error:
        refuse_damage(error, f"{path}: cannot be read as Parquet ({error}); remove it and run again")


def refuse_damage(error: BaseException, message: str) -> NoReturn:
    """Raise a UserError of `message` if `error`, one of UNREADABLE, means a corrupt file; re-raise a disk or memory error."""
    if (isinstance(error, OSError) and error.errno) or isinstance(error, MemoryError):
        raise error
    raise UserError(message) from None


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet file, from its footer; UserError if it is missing or corrupt."""
    with parquet_errors(path):
        return int(pq.read_metadata(path).num_rows)


def count_groups(path: Path) -> int:
    """The number of row groups, which any process can read by itself; UserError if the file is missing or corrupt."""
    with parquet_errors(path):
        return int(pq.read_metadata(path).num_row_groups)


def read_table(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """A whole Parquet file of `schema`, for tables that fit in memory (queries, qrels)."""
    selected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(read_batches(path, schema, columns), selected)


def values_of(path: Path, measure: str) -> dict[str, float]:
    """The value of `measure` by query, from a file that evaluate wrote; UserError if it is missing or corrupt, or has no such column."""
    wanted = pa.schema([("query", pa.string()), (measure, pa.float64())])
    with parquet_errors(path), open_parquet(path) as file:
        found = file.schema_arrow
        if not {*wanted} <= {*found}:
            raise UserError(f"{path}: found columns {found.names}, expected query and {measure}; re-run the stage that makes it")
        table = file.read(wanted.names)
    return dict(zip(table["query"].to_pylist(), table[measure].to_pylist(), strict=True))
