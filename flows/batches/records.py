"""The records of a batch, in the forms that prepare reads: BEIR or CSV. Every malformed line is reported, not only the first.

    BEIR  corpus.jsonl {_id, title, text}, queries.jsonl {_id, text}, qrels/SPLIT.tsv: query-id, corpus-id, score, and weight if wanted
    CSV   corpus.csv, queries.csv, qrels/SPLIT.csv with a header, or .tsv (tasks.prepare.readers.csv_tables); weight is one more column
    both  negatives.tsv (CSV: or .csv) with a header: query-id, corpus-id

Each file is optional, and plain or .gz; each CSV file has its own delimiter (tasks.core.sources.delimiters). One line is
in memory at a time.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tasks.core.errors import UserError
from tasks.core.files import open_unpacked
from tasks.core.params.safe_yaml import HALVES
from tasks.core.plurals import counted
from tasks.core.sources.answers import is_answers
from tasks.core.sources.columns import DOCUMENT_ID, QREL_DOC, QREL_GRADE, QREL_QUERY, QUERY_ID, QUERY_TEXT, TEXT, TITLE, WEIGHT
from tasks.core.sources.datasets import plain_or_gz, split_qrels
from tasks.core.sources.delimiters import BLANK, LARGEST_CELL, declares_delimiter, delimiter_of, is_tabbed
from tasks.core.sources.grades import EXPECTED, is_grade, is_heading
from tasks.core.sources.json_lines import Repeated, parse_line
from tasks.core.sources.qrels import EXPECTED_WEIGHT, column_order_error, weight_of

NAMES = ("corpus", "queries")
SHOWN = 60  # characters of a wrong line that a message quotes

Wrong = Callable[[str], None]  # is passed one line for each malformed line
Form = Literal["beir", "csv"]


class Document(NamedTuple):
    at: str  # FILE:LINE
    id: str
    title: str
    text: str


class Query(NamedTuple):
    at: str
    id: str
    text: str
    answered: bool = False  # whether it has an answer that is not blank


class Judged(NamedTuple):
    at: str
    query: str
    doc: str
    grade: int
    weight: float = 1.0


class Negative(NamedTuple):
    at: str
    query: str
    doc: str


@dataclass(frozen=True)
class Files:
    """The files of a batch, by what they hold; `csv`: they are in CSV form instead of BEIR's."""

    csv: bool
    documents: Path | None
    queries: Path | None
    qrels: dict[str, Path]
    negatives: Path | None = None

    def all(self) -> list[Path]:
        return [path for path in (self.documents, self.queries, *self.qrels.values(), self.negatives) if path]


def files_of(folder: Path, form: Form | None = None) -> Files:
    """Find the files of a data set of this `form`; other files are not read, as in prepare. Without it, those of a batch, which tell it.

    Raises UserError for two files of one kind, qrels of an unknown split, or a batch of two forms.
    """
    tables = plain_or_gz(folder, *(f"{name}{end}" for name in NAMES for end in (".csv", ".tsv")))
    csv_files = tables or plain_or_gz(folder / "qrels", "*.csv") or plain_or_gz(folder, "negatives.csv")
    in_csv = form == "csv" if form else bool(csv_files)
    ends = (".csv", ".tsv") if in_csv else (".jsonl",)
    by_name = {name: plain_or_gz(folder, *(f"{name}{end}" for end in ends)) for name in NAMES}
    if csv_files and not form and (json_files := plain_or_gz(folder, *(f"{name}.jsonl" for name in NAMES))):
        raise UserError(f"{json_files[0]}: {csv_files[0].name} exists too, expected either JSON lines or CSV; put them into two batches")
    negative_files = plain_or_gz(folder, *(("negatives.csv", "negatives.tsv") if in_csv else ("negatives.tsv",)))
    for files in (*by_name.values(), negative_files):
        if len(files) > 1:
            raise UserError(f"{files[0]}: {files[1].name} exists too, expected only one of them; keep one")
    qrels = split_qrels(folder, *((".csv", ".tsv") if in_csv else (".tsv",)))
    documents, queries = (next(iter(by_name[name]), None) for name in NAMES)
    return Files(in_csv, documents, queries, qrels, next(iter(negative_files), None))


def form_of(spec: str) -> Form:
    """The form of the folder with a data set's records; a file of pairs is converted to BEIR's."""
    return "csv" if spec.startswith("csv:") else "beir"


def files_without_header(files: Files) -> list[Path]:
    """The files that need a header but are empty. Merging skips them; prepare refuses them."""
    tables = files.all() if files.csv else filter(None, [files.negatives])
    return [path for path in tables if not any(line.strip(BLANK) for line in _texts(path, lambda _: None))]


def documents(files: Files, wrong: Wrong) -> Iterator[Document]:
    """The valid documents of a batch."""
    if files.documents is None:
        return
    if files.csv:
        for at, (name, title, text) in _rows(files.documents, (DOCUMENT_ID, TITLE, TEXT), wrong, optional=TITLE):
            if _named(at, name, wrong):
                yield Document(at, name, title, text)
        return
    for at, record in objects(files.documents, "_id, title and text", wrong):
        heading = record.get("title")
        if heading is not None and not isinstance(heading, str):
            wrong(f"{at}: found title {shorten(heading)}, expected a string")
        elif id_and_text := _identified(at, record, wrong):
            yield Document(at, id_and_text[0], heading or "", id_and_text[1])


def queries(files: Files, wrong: Wrong) -> Iterator[Query]:
    """The valid queries of a batch."""
    if files.queries is None:
        return
    if files.csv:
        for at, (name, text) in _rows(files.queries, (QUERY_ID, QUERY_TEXT), wrong):
            if _named(at, name, wrong):
                yield Query(at, name, text)
        return
    for at, record in objects(files.queries, "_id and text", wrong):
        answers = record.get("answers") or []
        if not is_answers(answers):
            wrong(f"{at}: found answers {shorten(answers)}, expected a list of strings")
        elif HALVES.search("".join(answers)):
            wrong(f"{at}: an answer contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text")
        elif id_and_text := _identified(at, record, wrong):
            yield Query(at, *id_and_text, any(answer.strip() for answer in answers))


def judgments(files: Files, split: str, wrong: Wrong) -> Iterator[Judged]:
    """The valid judgments of one split."""
    path = files.qrels[split]
    if files.csv:
        for at, (*cells, weight) in _rows(path, (QREL_QUERY, QREL_DOC, QREL_GRADE, (WEIGHT,)), wrong, optional=(WEIGHT,)):
            if (judged := _judged(at, [*cells, weight] if weight else cells, wrong)) is not None:
                yield judged
        return
    columns = 3
    for number, line in lines(path, wrong):
        at, cells = f"{path}:{number}", line.split("\t")
        if number == 1 and cells[3:] in ([], [WEIGHT]) and len(cells) > 2 and is_heading(cells[2]):
            columns = len(cells)
            if swapped := column_order_error(cells):
                wrong(f"{at}: {swapped}")
                return
            continue
        if len(cells) != columns:
            names = ", ".join(("query-id", "corpus-id", "score", WEIGHT)[:columns])
            wrong(f"{at}: found {counted(len(cells), 'columns')} ({shorten(line)}), expected {columns} separated by tabs ({names})")
        elif (judged := _judged(at, cells, wrong)) is not None:
            yield judged


def negatives(files: Files, wrong: Wrong) -> Iterator[Negative]:
    """The valid negatives of a batch."""
    for at, cells in _rows(files.negatives, (QREL_QUERY, QREL_DOC), wrong) if files.negatives else ():
        if all(_named(at, name, wrong) for name in cells):
            yield Negative(at, *cells)


def lines(path: Path, wrong: Wrong) -> Iterator[tuple[int, str]]:
    """Every line that is not blank, decoded and without its line end, and its number from 1."""
    return ((number, line.rstrip("\r\n")) for number, line in enumerate(_texts(path, wrong), 1) if line.strip())


def beir_lines(files: Files, path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a CSV batch's file, or of negatives, as lines of the BEIR file in its place. Raises UserError for a malformed row."""

    def refuse(line: str) -> None:
        raise UserError(f"{line}; fix that line")

    number = 0
    if path == files.documents:
        for number, document in enumerate(documents(files, refuse), 1):
            yield number, json.dumps({"_id": document.id, "title": document.title, "text": document.text}, ensure_ascii=False)
    elif path == files.queries:
        for number, query in enumerate(queries(files, refuse), 1):
            yield number, json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False)
    elif path == files.negatives:
        for number, negative in enumerate(negatives(files, refuse), 1):
            yield number, "\t".join(map(quote_id, negative[1:]))
    else:
        split = next(name for name, file in files.qrels.items() if file == path)
        for number, judged in enumerate(judgments(files, split, refuse), 1):
            weight = f"\t{judged.weight!r}" if judged.weight != 1 else ""
            yield number, f"{judged.query}\t{judged.doc}\t{judged.grade}{weight}"


def quote_id(name: str) -> str:
    """An id as a cell of negatives.tsv, which is read as CSV: an unescaped leading quotation mark would open a quoted cell."""
    return '"' + name.replace('"', '""') + '"' if name.startswith('"') else name


def objects(path: Path, expected: str, wrong: Wrong) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of JSON lines, each with its FILE:LINE; `expected` names the keys of an object, for messages."""
    for number, line in lines(path, wrong):
        at = f"{path}:{number}"
        try:
            value = parse_line(line)
        except Repeated as error:
            wrong(f"{at}: {error}, expected it once")
            continue
        except json.JSONDecodeError as error:
            wrong(f"{at}: not JSON ({error.msg}, column {error.colno}), expected an object with {expected}")
            continue
        except (ValueError, RecursionError):  # a number with thousands of digits, or nested too deeply
            wrong(f"{at}: cannot be read as JSON ({shorten(line)}), expected an object with {expected}")
            continue
        if isinstance(value, dict):
            yield at, value
        else:
            wrong(f"{at}: found a JSON {type(value).__name__}, expected an object with {expected}")


def _identified(at: str, record: dict[str, Any], wrong: Wrong) -> tuple[str, str] | None:
    """The id and the text of a JSON object. If one is missing or invalid, report it and return None."""
    name, text = record.get("_id"), record.get("text")
    if name is None or isinstance(name, bool) or not isinstance(name, str | int):
        wrong(f"{at}: found {'no _id' if name is None else f'_id {shorten(name)}'}, expected a string or an integer")
    elif not isinstance(text, str):
        wrong(f"{at}: found {'no text' if text is None else f'text {shorten(text)}'}, expected a string")
    elif HALVES.search(f"{name}{text}{record.get('title')}"):
        wrong(f"{at}: the text contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text")
    elif _named(at, str(name), wrong):
        return str(name), text
    return None


def _named(at: str, name: str, wrong: Wrong) -> bool:
    if not name or any(mark in name for mark in "\t\r\n\0"):
        wrong(f"{at}: found id {shorten(name)}, expected a non-empty one without tabs, line ends, or NUL")
        return False
    return True


def _judged(at: str, cells: Sequence[str], wrong: Wrong) -> Judged | None:
    query, doc, grade, *rest = cells
    if not query or not doc:
        wrong(f"{at}: found query-id {shorten(query)} and corpus-id {shorten(doc)}, expected two ids")
    elif not (_named(at, query, wrong) and _named(at, doc, wrong)):
        return None
    elif not is_grade(grade):
        wrong(f"{at}: found grade {shorten(grade)}, expected {EXPECTED}")
    elif (weight := weight_of(rest[0]) if rest else 1.0) is None:
        wrong(f"{at}: found weight {shorten(rest[0])}, expected {EXPECTED_WEIGHT}")
    else:
        return Judged(at, query, doc, int(grade), weight)
    return None


def _rows(
    path: Path, wanted: Sequence[tuple[str, ...]], wrong: Wrong, *, optional: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """The `wanted` cells of every row, with the FILE:LINE where the row begins. After an unterminated quote nothing can be read."""
    csv.field_size_limit(LARGEST_CELL)
    try:
        delimiter = delimiter_of(path, _texts(path, lambda _: None))
    except UserError as error:
        wrong(f"{error.where}: found {error.found}, expected {error.expected}")
        return
    rows = csv.reader(_texts(path, wrong), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    places: list[int | None] = []
    start = 1
    try:
        for cells in rows:
            is_delimiter_line, at, start = start == 1 and declares_delimiter(cells, delimiter), f"{path}:{start}", rows.line_num + 1
            if is_delimiter_line or not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                places = [next((header.index(name) for name in names if name in header), None) for names in wanted]
                for place, names in zip(places, wanted, strict=True):
                    if place is None and names != optional:
                        wrong(f"{at}: found columns {', '.join(header)}, expected {' or '.join(names)}")
                        return
                    if place is not None and header.count(header[place]) > 1:
                        wrong(f"{at}: found column {header[place]} {header.count(header[place])} times, expected it once")
                        return
            elif len(cells) != len(header):
                wrong(f"{at}: found {counted(len(cells), 'cells')}, expected {len(header)} as in the header ({', '.join(header)})")
            else:
                yield at, ["" if place is None else cells[place] for place in places]
    except csv.Error as error:
        wrong(f"{path}:{start}: invalid {'TSV' if is_tabbed(path) else 'CSV'} in the row that begins here ({error})")


def _texts(path: Path, wrong: Wrong) -> Iterator[str]:
    """Every line with its line end, blank ones too, so that line numbers are right. One that cannot be decoded is reported, and yielded
    as blank.
    """
    number = 0
    try:
        with open_unpacked(path) as handle:
            for number, raw in enumerate(handle, 1):
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    wrong(f"{path}:{number}: not UTF-8 at byte {error.start + 1} of the line")
                    yield "\n"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        wrong(f"{path}:{number + 1}: the gzip file is truncated or corrupt here ({error})")


def shorten(value: object) -> str:
    """A wrong value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
