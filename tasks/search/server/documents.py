"""Titles and texts of a corpus by document id, for many lookups. They are mapped from a file; only ids are in memory."""

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import DOCUMENTS

SHOWN = pa.schema([DOCUMENTS.field(name) for name in ("title", "text")])


class Documents:
    """The documents of a documents.parquet. They are copied to an unnamed temporary file, which can be mapped."""

    def __init__(self, path: Path) -> None:
        """Copy the documents of `path`. UserError if the file is missing or corrupt, or the disk is full."""
        ids, self._starts, rows = [], [0], 0
        with tempfile.NamedTemporaryFile(prefix="retemper-", suffix=".arrow") as copy:
            with pa.ipc.new_file(copy, SHOWN) as writer:
                for batch in read_batches(path, DOCUMENTS, ["id", *SHOWN.names]):
                    writer.write_batch(batch.select(SHOWN.names))
                    ids.append(batch["id"])
                    rows += batch.num_rows
                    self._starts.append(rows)
            copy.flush()
            self._file = pa.ipc.open_file(pa.memory_map(copy.name))
        self.ids = pa.chunked_array(ids, pa.string()).combine_chunks()
        self._order = pc.sort_indices(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self, documents: Sequence[str]) -> list[tuple[str, str]]:
        """The title and text of each of `documents`, given by id. UserError for an unknown id."""
        return [self._at(self._row(document)) for document in documents]

    def _row(self, document: str) -> int:
        def by_rank(rank: int) -> str:
            document_id: str = self.ids[self._order[rank].as_py()].as_py()
            return document_id

        rank = bisect_left(range(len(self)), document.encode(), key=lambda place: by_rank(place).encode())  # Arrow orders by bytes
        if rank == len(self) or by_rank(rank) != document:
            raise UserError(f"no document {document}; the index is from another corpus, run the pipeline")
        row: int = self._order[rank].as_py()
        return row

    def _at(self, row: int) -> tuple[str, str]:
        number = bisect_right(self._starts, row) - 1
        batch, place = self._file.get_batch(number), row - self._starts[number]
        return batch["title"][place].as_py(), batch["text"][place].as_py()
