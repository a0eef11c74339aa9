"""Check documents and queries one by one, whatever the kind of source, and batch them for a table."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TypeVar

import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import HALVES
from tasks.core.tables.lengths import Lengths
from tasks.core.tables.parquet import BATCH_ROWS
from tasks.core.tables.schemas import SPLITS
from tasks.core.text.plain import record_label
from tasks.core.trec.ids import WHITE
from tasks.prepare.params import Prepare
from tasks.prepare.source import Document, Query

T = TypeVar("T")
Text = TypeVar("Text", Document, Query)


@dataclass
class Tally:
    """Running counts. `dropped` counts by reason, `white_ids` (ids with white space) by kind of record."""

    documents: Lengths = field(default_factory=Lengths)
    queries: dict[str, Lengths] = field(default_factory=lambda: {split: Lengths() for split in SPLITS})
    empty_titles: int = 0
    empty_texts: int = 0
    copies: int = 0  # documents with the title and text of an earlier one
    dropped: Counter[str] = field(default_factory=Counter)
    white_ids: Counter[str] = field(default_factory=Counter)
    leaks: int = 0  # training queries that are also in dev or test
    dev_in_test: int = 0  # queries of dev that are in test too, by id or text


class WhiteId(UserError):
    """An id with white space. The code that can read all records turns it into an error with their number (`white_space_error`)."""

    what: str
    record: Document | Query


def chunks(items: Iterable[T], size: int = BATCH_ROWS) -> Iterator[list[T]]:
    """Lists of `size` items; the last one may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def with_text(records: Iterable[Text], kind: str, settings: Prepare, tally: Tally, empty: set[str]) -> Iterator[Text]:
    """The records that have a text, with their ids checked. A record without text is refused, or counted and its id added to `empty`."""
    for record in records:
        if not record.id:
            raise UserError(f"{record.at}: found an empty {kind} id, expected one that names it; fix that line")
        if "\0" in record.id:
            raise UserError(f"{record.at}: found {kind} id {record.id!r}, expected one without NUL, which ends a name in C; rename it")
        if WHITE.search(record.id):
            if settings.ids == "refuse":
                raise _white(record, kind)
            tally.white_ids[kind] += 1
        if record.text.strip() or (isinstance(record, Document) and record.title.strip()):
            yield record
        elif settings.empty_texts == "refuse":
            fields = "title and text" if kind == "document" else "text"
            raise UserError(f"{record.at}: {record_label(kind, record.id)} has an empty {fields}; fill it, or set prepare.empty_texts=drop")
        else:
            tally.dropped[f"{'documents' if kind == 'document' else 'queries'} without text"] += 1
            empty.add(record.id)


def _white(record: Document | Query, kind: str) -> WhiteId:
    error = WhiteId(f"{record.at}: found {kind} id {record.id!r}, expected one without white space")
    error.what, error.record = kind, record
    return error


def white_space_error(error: WhiteId, read: Callable[[], Iterable[Document | Query]]) -> UserError:
    """The error to show, with the number of ids in the stream that have white space. Counting ends at another mistake in the stream."""
    count = 0
    with suppress(UserError):
        for other in read():
            count += bool(WHITE.search(other.id))
    ids = f"{count:,} such {error.what} id{'s' if count > 1 else ''}"
    return UserError(
        f"{error.record.at}: found {error.what} id {error.record.id!r}, expected one without white space, which separates the fields of "
        f"run files ({ids}); rename it, or set prepare.ids=escape"
    )


def batch_of(schema: pa.Schema, records: Sequence[Document | Query]) -> pa.RecordBatch:
    try:
        return pa.record_batch([pa.array(list(map(attrgetter(f.name), records)), f.type) for f in schema], schema=schema)
    except UnicodeEncodeError:
        for record in records:
            if _half_character(record):
                raise UserError(
                    f"{record.at}: the text contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text; fix that line"
                ) from None
        raise


def _half_character(record: Document | Query) -> bool:
    texts = [record.id, record.text, *([record.title] if isinstance(record, Document) else record.answers)]
    return any(HALVES.search(text) for text in texts)
