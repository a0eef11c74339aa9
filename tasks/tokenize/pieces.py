"""Tokenize the documents, one row group of their file per piece, with one process per core. A kill loses only the pieces in progress."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.core.machine.processes import map_in_order, resumable
from tasks.core.tables.parquet import count_groups, read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.document import Text
from tasks.core.text.mapped import document_parts
from tasks.core.tokens.bare_tokenizer import Known
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import Rows, rows_by
from tasks.core.tokens.tokenizer import cached_tokenizer

ALONE = 16  # row groups, seconds of work; fewer are not worth another process

ARRAYS = ("flat", "lengths", "counts")  # fields of Rows


class Job(NamedTuple):
    """The settings that all pieces share. It has only names and settings, because it is sent to processes."""

    documents: Path
    tokenizer: Path
    text: Text
    cut: Cut
    known: Known | None = None  # of the tokenizer


def is_large(documents: Path) -> bool:
    """Whether there is enough work to use several processes and to keep finished pieces."""
    return count_groups(documents) > ALONE


def tokenize_documents(job: Job, processes: int, scratch: Path | None) -> Iterator[Rows]:
    """The rows of all documents, in order, whatever the number of processes. Finished pieces are kept in `scratch`, if given."""
    groups = range(count_groups(job.documents))
    if scratch is None:
        for rows in map_in_order(partial(tokenize_group, job), groups, processes, alone=ALONE):
            yield from rows
        return
    for group, path in enumerate(resumable(partial(keep_group, job), groups, scratch, processes)):
        yield from _stored_rows(job, group, path)


def tokenize_group(job: Job, group: int) -> list[Rows]:
    """The rows of the documents of one row group, in parts of at most TEXT_BYTES of text."""
    rows = _rows(job.tokenizer.resolve(), job.known, job.cut)
    return [rows(ids, texts) for ids, texts in document_parts(job.documents, job.text, group)]


def keep_group(job: Job, group: int, path: Path) -> None:
    """Write the rows of one row group to a file, without their ids, which are in the file of documents."""
    parts = tokenize_group(job, group)
    arrays = {f"{name}{number}": getattr(rows, name) for number, rows in enumerate(parts) for name in ARRAYS}
    with path.open("wb") as out:
        np.savez(out, **arrays)


def _stored_rows(job: Job, group: int, path: Path) -> Iterator[Rows]:
    with np.load(path, allow_pickle=False) as arrays:
        ids = [name for batch in read_batches(job.documents, DOCUMENTS, group=group) for name in batch["id"].to_pylist()]
        start = 0
        for number in range(len(arrays) // len(ARRAYS)):
            flat, lengths, counts = (arrays[f"{name}{number}"] for name in ARRAYS)
            yield Rows(ids[start : start + len(counts)], flat, lengths, counts)
            start += len(counts)


@cache
def _rows(tokenizer: Path, known: Known | None, settings: Cut) -> Any:
    """The tokenizing function; one per process, because it caches words."""
    return rows_by(cached_tokenizer(tokenizer, known), settings)
