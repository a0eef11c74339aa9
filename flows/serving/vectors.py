"""The vectors of a corpus as one Parquet file, for vector databases: Qdrant, LanceDB, Vespa and others read it.

row      int64: the row of the index, a number for databases that want one
id       the document's id
passage  int32: the number of this passage in its document, from 0
vector   fixed_size_list<float32>[width], as encoded: uncompressed, whatever the index is
title, text   of the document, if requested
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.champions.champion import Get
from flows.repository.lock import Lock, out_makers, parameters
from tasks.core.errors import UserError
from tasks.core.models.export import read_record
from tasks.core.retrieval.embeddings import Embeddings, open_embeddings
from tasks.core.tables.parquet import read_batches, write_table
from tasks.core.tables.schemas import DOCUMENTS

ROWS = 8192  # of a row group
TEXTS = ("title", "text")
TEXT_BYTES = 1 << 26  # of the texts that are written at once


def write_vectors(get: Get, lock: Lock, folder: Path, *, documents: bool) -> None:
    """Add vectors.parquet of an export's model to it; of a fusion of several, also vectors.NAME.parquet, as its other parts are named.

    `get` copies an out of the champion's commit; `documents`: with texts. Raises UserError if the vectors are lost.
    """
    texts = folder / "documents.parquet" if documents else None
    for model, (part, _) in read_record(folder).encoders.items():
        with TemporaryDirectory(prefix=".vectors-", dir=folder.parent) as scratch:
            get(vectors_of(model, lock), Path(scratch) / "embeddings")
            embeddings = open_embeddings(Path(scratch) / "embeddings")
            file = folder / f"{part.replace('encoder', 'vectors', 1)}.parquet"
            write_table(file, schema(embeddings.manifest.width, documents), rows(embeddings, texts))


def vectors_of(model: str, lock: Lock) -> str:
    """The out with the document vectors of a model: its own, or for a query tower those of its round."""
    outs = out_makers(lock)
    if f"data/embeddings/{model}" in outs:
        return f"data/embeddings/{model}"
    round_ = parameters(lock.get(f"adore@{model}", {})).get(f"adore.{model}", {}).get("round")
    if f"data/embeddings/{round_}" not in outs:
        raise UserError(f"dvc.lock: no vectors of {model}, expected the out of encode@{round_ or model}; run retemper run")
    return f"data/embeddings/{round_}"


def schema(width: int, documents: bool) -> pa.Schema:
    """Columns of the file."""
    fields = [("row", pa.int64()), ("id", pa.string()), ("passage", pa.int32()), ("vector", pa.list_(pa.float32(), width))]
    return pa.schema([*fields, *((name, pa.string()) for name in (TEXTS if documents else ()))])


def rows(embeddings: Embeddings, documents: Path | None) -> Iterator[pa.Table]:
    """The file's rows in the order of the index, at most ROWS at a time. Apart from ids, memory does not grow with the corpus."""
    owners, ids, width = embeddings.owners(), embeddings.ids(), embeddings.manifest.width
    texts = Texts(documents) if documents else None
    for first, block in embeddings.blocks():
        start = 0
        while start < len(block):
            # Of the same dtype, or searchsorted would copy all owners.
            owner = np.asarray(owners[first + start : first + min(start + ROWS, len(block))])
            document_texts = texts.take(owner) if texts else None
            owner = owner[: len(document_texts)] if document_texts else owner
            part = np.ascontiguousarray(block[start : start + len(owner)], dtype=np.float32)
            row_numbers = np.arange(first + start, first + start + len(part))
            columns = [
                pa.array(row_numbers),
                ids.take(pa.array(owner)),
                pa.array((row_numbers - np.searchsorted(owners, owner)).astype(np.int32)),
                pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), width),
            ]
            columns += [document_texts[name].combine_chunks() for name in TEXTS] if document_texts else []
            yield pa.table(columns, schema=schema(width, documents is not None))
            start += len(part)


class Texts:
    """Titles and texts of documents, requested by ascending ordinals, so that the file is read once, a part at a time."""

    def __init__(self, path: Path) -> None:
        self._batches = read_batches(path, DOCUMENTS, list(TEXTS))
        self._buffer, self._start = pa.schema([DOCUMENTS.field(name) for name in TEXTS]).empty_table(), 0

    def take(self, owners: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pa.Table:
        """The rows of ascending `owners`, none of which is below earlier ones: of all, or of the first that have at most TEXT_BYTES."""
        self._read(owners[0])
        self._buffer, self._start = self._buffer.slice(owners[0] - self._start), int(owners[0])
        self._read(owners[-1], TEXT_BYTES)
        places = owners - self._start
        sizes = sum(pc.binary_length(self._buffer[name]).to_numpy() for name in TEXTS)
        places = places[places < len(self._buffer)]
        count = int(np.searchsorted(np.cumsum(sizes[places], dtype=np.int64), TEXT_BYTES, side="right"))
        return self._buffer.take(pa.array(places[: max(count, 1)]))

    def _read(self, owner: int, limit: int | None = None) -> None:
        """Read on until the buffer has `owner`, or more than `limit` bytes."""
        while self._start + len(self._buffer) <= owner and (limit is None or self._buffer.nbytes <= limit):
            self._buffer = pa.concat_tables([self._buffer, pa.Table.from_batches([next(self._batches)])])
