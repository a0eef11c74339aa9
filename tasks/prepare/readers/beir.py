"""BEIR folders: corpus.jsonl {_id, title, text}, queries.jsonl {_id, text}, qrels/SPLIT.tsv with a header; each plain or .gz.

One query file serves all splits. There are extensions to BEIR. A query may have `answers`, a list of strings (OpenQA). Scalars in a query's
`metadata` become columns. Qrels may have a fourth column, named weight in the header: the pair's weight in training. negatives.tsv, if
present, lists hard negatives, best first; its header has query-id and corpus-id, and may have other columns.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.sources.answers import is_answers
from tasks.core.sources.columns import WEIGHT
from tasks.core.sources.datasets import beir_layout
from tasks.core.sources.grades import is_heading
from tasks.core.sources.qrels import column_order_error
from tasks.prepare.readers.csv_tables import negatives
from tasks.prepare.readers.lines import Lines, blocks, grade, read_columns, read_lines, read_objects, weight
from tasks.prepare.source import At, Document, Documents, Qrel, Query, Source


def read(folder: Path, *, needs_qrels: bool = True) -> Source:
    """The BEIR dataset in `folder`."""
    layout = beir_layout(folder, needs_qrels=needs_qrels)
    return Source(
        documents=partial(documents, layout.documents),
        queries={key: partial(queries, file) for key, file in layout.queries.items()},
        qrels={split: partial(qrels, file) for split, file in layout.qrels.items()},
        negatives=partial(negatives, layout.official),
        parts=partial(parts, layout.documents),
    )


def parts(file: Path) -> Iterator[Documents]:
    """Cut the documents into parts of whole lines."""
    return (partial(documents, block) for block in blocks(file))


def documents(file: Path | Lines) -> Iterator[Document]:
    """JSON lines with `_id` (string or integer), `text`, and an optional `title`."""
    for at, record in read_objects(file, "_id, title and text"):
        title = record.get("title")
        yield Document(at, _id(at, record), "" if title is None else _string(at, "title", title), _text(at, record))


def queries(file: Path) -> Iterator[Query]:
    """JSON lines with `_id` (string or integer) and `text`."""
    for at, record in read_objects(file, "_id and text"):
        answers = record.get("answers") or []
        if not is_answers(answers):
            raise UserError(f"{at}: found answers {answers!r}, expected a list of strings; fix that line")
        yield Query(at, _id(at, record), _text(at, record), answers, _columns(record.get("metadata")))


def qrels(file: Path) -> Iterator[Qrel]:
    """Lines of query, document, grade, and (our extension) weight. The first line is a header unless its third cell is a number."""
    names: tuple[str, ...] = ("query-id", "corpus-id", "score")
    header = next(read_lines(file), None)
    if header and header[1].split("\t")[3:] == [WEIGHT]:
        names = (*names, WEIGHT)
    for at, (query, doc, cell, *weights) in read_columns(file, names):
        if at.line == 1 and is_heading(cell):
            if error := column_order_error((query, doc, cell)):
                raise UserError(f"{at}: {error}; swap them")
        else:
            yield Qrel(at, query, doc, grade(at, cell), *(weight(at, text) for text in weights))


def _columns(metadata: object) -> dict[str, str]:
    """The fields of a query's metadata that are strings, numbers, or booleans. Lone surrogates become question marks."""
    fields = metadata.items() if isinstance(metadata, dict) else ()
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields if isinstance(value, str | int | float)}
    return {_replace_surrogates(name): _replace_surrogates(value) for name, value in texts.items()}


def _replace_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()


def _id(at: At, record: dict[str, Any]) -> str:
    value = record.get("_id")
    if value is None:
        raise UserError(f"{at}: no _id, found {', '.join(record) or 'no fields'}; every line needs one")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{at}: found _id {value!r}, expected a string or an integer; fix that line")
    return str(value)


def _text(at: At, record: dict[str, Any]) -> str:
    if record.get("text") is None:
        raise UserError(f"{at}: no text, found {', '.join(record) or 'no fields'}; every line needs one")
    return _string(at, "text", record["text"])


def _string(at: At, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{at}: found {name} {value!r}, expected a string; fix that line")
    return value
