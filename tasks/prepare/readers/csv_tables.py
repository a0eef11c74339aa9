"""Folders of CSV or TSV files with a header, as spreadsheets and databases export them; each plain or .gz.

    corpus.csv | corpus.tsv            id, title (optional), text
    queries.csv | queries.tsv          id, text
    qrels/{train,dev,test}.csv | .tsv  query, doc, grade, weight (optional; an empty cell is 1)
    negatives.csv | negatives.tsv      query, doc: ready-made negatives, best first (optional)

Cells of .tsv are separated by tabs. Cells of .csv are separated by commas or semicolons (German and French spreadsheets write these); each
file's header decides (tasks.core.sources.delimiters). A quoted cell ("...") may contain the delimiter, doubled quotes, and line breaks.
Columns may come in any order, under any name in tasks.core.sources.columns. Other columns are ignored.
"""

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.sources.columns import DOCUMENT_ID, QREL_DOC, QREL_GRADE, QREL_QUERY, QUERY_ID, QUERY_TEXT, TEXT, TITLE, WEIGHT
from tasks.core.sources.datasets import csv_layout
from tasks.core.sources.delimiters import EITHER, LARGEST_CELL, declares_delimiter, delimiter_of, is_tabbed
from tasks.prepare.readers.lines import grade, read_text_lines, weight
from tasks.prepare.source import At, Document, Negative, Qrel, Query, Source

NAMES = {
    "documents": (DOCUMENT_ID, TITLE, TEXT),
    "queries": (QUERY_ID, QUERY_TEXT),
    "qrels": (QREL_QUERY, QREL_DOC, QREL_GRADE),
    "negatives": (QREL_QUERY, QREL_DOC),
}


def read(folder: Path, *, needs_qrels: bool = True) -> Source:
    """The tables in `folder`."""
    layout = csv_layout(folder, needs_qrels=needs_qrels)
    return Source(
        documents=partial(documents, layout.documents),
        queries={key: partial(queries, file) for key, file in layout.queries.items()},
        qrels={split: partial(qrels, file) for split, file in layout.qrels.items()},
        negatives=partial(negatives, layout.official),
    )


def documents(file: Path) -> Iterator[Document]:
    for at, (doc, title, text) in read_rows(file, NAMES["documents"], optional=TITLE):
        yield Document(at, doc, title, text)


def queries(file: Path) -> Iterator[Query]:
    for at, (query, text) in read_rows(file, NAMES["queries"]):
        yield Query(at, query, text, [])


def qrels(file: Path) -> Iterator[Qrel]:
    for at, (query, doc, cell, weighs) in read_rows(file, (*NAMES["qrels"], (WEIGHT,)), optional=(WEIGHT,)):
        yield Qrel(at, query, doc, grade(at, cell), weight(at, weighs) if weighs else 1.0)


def negatives(files: tuple[Path, ...]) -> Iterator[Negative]:
    """The negatives of a folder; also used for BEIR folders."""
    for file in files:
        for at, (query, doc) in read_rows(file, NAMES["negatives"]):
            yield Negative(at, query, doc)


def read_rows(file: Path, columns: Sequence[tuple[str, ...]], optional: tuple[str, ...] = ()) -> Iterator[tuple[At, list[str]]]:
    """For every row, its cells in `columns`, each given by its possible names; "" for an `optional` column that is absent.

    UserError for a header with two delimiters, a missing or repeated column, a row with more or fewer cells than the header, or an
    unterminated quote.
    """
    separator = "tabs" if is_tabbed(file) else EITHER
    expected = ", ".join(names[0] if names[0] != "_id" else "id" for names in columns)
    places: list[int | None] | None = None
    for at, header, cells in read_cells(file, expected):
        if places is None:
            places = [_place(at, header, names, names == optional, separator) for names in columns]
        if cells is not None:
            yield at, ["" if place is None else cells[place] for place in places]


def read_cells(file: Path, expected: str) -> Iterator[tuple[At, list[str], list[str] | None]]:
    """Yield (place, header, None), then (place, header, cells) per row, with as many cells as the header. A row's place is its first line.

    `expected` names the columns. UserError as in `read_rows`.
    """
    csv.field_size_limit(LARGEST_CELL)
    delimiter = delimiter_of(file, read_text_lines(file))
    rows = csv.reader(read_text_lines(file), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    first_line = 1
    try:
        for cells in rows:
            at, first_line = At(file, first_line), rows.line_num + 1
            if not any(cell.strip() for cell in cells) or (at.line == 1 and declares_delimiter(cells, delimiter)):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                yield at, header, None
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{at}: found {counted(len(cells), 'cells')}, expected {len(header)} as in the header ({', '.join(header)}); "
                    "fix that row"
                )
            yield at, header, cells
    except csv.Error as error:
        raise UserError(
            f"{file}:{first_line}: invalid {'TSV' if is_tabbed(file) else 'CSV'} in the row that begins here ({error}); quote a cell that "
            'contains quotes, line breaks, or the delimiter, and double the quotes in it ("")'
        ) from None
    if header is None:
        raise UserError(f"{file}: empty, expected a header ({expected}) and rows below it")


def _place(at: At, header: Sequence[str], names: tuple[str, ...], optional: bool, delimiter: str) -> int | None:
    place = next((header.index(name) for name in names if name in header), None)
    if place is None and not optional:
        raise UserError(f"{at}: found columns {', '.join(header)}, expected {' or '.join(names)} in a header separated by {delimiter}")
    if place is not None and header.count(header[place]) > 1:
        raise UserError(f"{at}: found column {header[place]} {header.count(header[place])} times, expected it once; rename or drop one")
    return place
