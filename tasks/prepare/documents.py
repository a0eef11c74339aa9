"""Write the documents of a source. Parts are read and checked by one process per core, and written in the source's order."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.machine.processes import map_in_order
from tasks.core.stage.progress import Progress
from tasks.core.tables.id_sets import Hashes, Ids, hashes
from tasks.core.tables.lengths import Lengths
from tasks.core.tables.parquet import BATCH_ROWS, write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.prepare.copies import count_copies, sketch_documents
from tasks.prepare.params import Prepare
from tasks.prepare.records import Tally, WhiteId, batch_of, white_space_error, with_text
from tasks.prepare.source import Document, Documents, Source

ALONE = 8  # parts of a few MiB, a second or two of work; fewer are not worth another process


@dataclass(frozen=True)
class Checked:
    """The documents of one part, and its counts."""

    rows: pa.RecordBatch
    hashes: Hashes
    sketches: Hashes
    lengths: Lengths
    empty_titles: int
    empty_texts: int
    read: int
    dropped: Counter[str]
    white_ids: Counter[str]
    empty: frozenset[str]


def check_part(read: Documents, settings: Prepare) -> Checked:
    """Read and check one part."""
    tally, empty = Tally(), set[str]()
    with _no_collection():
        rows = list(with_text(read(), "document", settings, tally, empty))
    batch = batch_of(DOCUMENTS, rows)
    lengths = Lengths()
    counts, sketches = sketch_documents(rows)
    lengths.counts.update(counts)
    return Checked(
        batch,
        hashes([document.id for document in rows]),
        sketches,
        lengths,
        sum(not document.title.strip() for document in rows),
        counts.count(0),
        len(rows) + tally.dropped.total(),
        tally.dropped,
        tally.white_ids,
        frozenset(empty),
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn off garbage collection. Records have no reference cycles, and a search for cycles takes longer than reading a tenth of them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def write_documents(source: Source, settings: Prepare, path: Path, *, tally: Tally, processes: int) -> tuple[Ids, set[str]]:
    """Write all documents that have a text. Return their ids, and the ids of documents without text. Counts go to `tally`.

    UserError for the first document in source order that has a mistake, whatever the number of processes.
    """
    ids, empty, sketches = Ids(), set[str](), list[Hashes]()
    parts = source.parts() if source.parts else _lazily(source.documents())
    progress = Progress("documents", None)

    def batches() -> Iterator[pa.RecordBatch]:
        for part in map_in_order(partial(check_part, settings=settings), parts, processes if source.parts else 1, alone=ALONE):
            ids.extend(part.hashes)
            sketches.append(part.sketches)
            tally.documents.counts.update(part.lengths.counts)
            tally.empty_titles += part.empty_titles
            tally.empty_texts += part.empty_texts
            tally.dropped.update(part.dropped)
            tally.white_ids.update(part.white_ids)
            empty.update(part.empty)
            progress.advance(part.read)
            yield part.rows

    try:
        count = write_table(path, DOCUMENTS, rebatch(batches()))
    except WhiteId as error:
        raise white_space_error(error, source.documents) from None
    progress.close()
    if not count:
        raise UserError(f"{source.name} has no documents, expected at least one; fix the source")
    tally.copies = count_copies(path, sketches)
    return ids, empty


def rebatch(batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """The same rows in tables of `rows` rows, each contiguous, so that the file does not depend on the sizes of `batches`."""
    pending = DOCUMENTS.empty_table()
    for batch in batches:
        pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
        while pending.num_rows >= rows:
            yield pending.slice(0, rows).combine_chunks()
            pending = pending.slice(rows)
    if pending.num_rows:
        yield pending.combine_chunks()


def _lazily(records: Iterable[Document]) -> Iterator[Documents]:
    """Cut a stream into parts that only this process can read. A part takes its records from the stream when it is read."""
    remaining = iter(records)
    for first in remaining:
        yield partial(chain, [first], islice(remaining, BATCH_ROWS - 1))
