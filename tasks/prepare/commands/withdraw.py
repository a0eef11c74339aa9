"""Remove records from a source's own files: lines of a BEIR folder, rows of a CSV folder. The process behind `retemper forget`.

A batch of the inbox ("batch") may have either form, with any part missing. Files of pairs ("pairs", in place of folders) are only
inspected.

Reads a JSON object from standard input and prints one. Lines that are kept stay byte for byte. A file is replaced by one rename.

    {"kind": "beir" | "csv" | "batch" | "pairs", "folders": [FOLDER, ...], "marks": [MARK, ...], "dry": true | false, "columns": "#...",
     "base": the file of pairs that files of the inbox add to, or empty}
    {"files": {FILE: records removed}, "texts": [TEXT, ...], "unread": [FILE, ...]}

`unread`: files that prepare would refuse. A malformed line of JSON stays; a malformed CSV file stays as it is.
"""

import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tasks.core.errors import UserError
from tasks.core.files import delete, is_gzip, new_file, open_unpacked
from tasks.core.sources.columns import TITLE
from tasks.core.sources.delimiters import LARGEST_CELL, declares_delimiter, delimiter_of
from tasks.core.sources.forgotten import mark
from tasks.core.sources.grades import is_heading
from tasks.core.sources.json_lines import parse_line
from tasks.core.sources.pairs import pairs_file
from tasks.core.stage.entry import stage
from tasks.core.text.plain import digest
from tasks.prepare.readers import pairs
from tasks.prepare.readers.csv_tables import NAMES
from tasks.prepare.readers.lines import BOM

CACHED = re.compile(r"/[0-9a-f]{2}/[0-9a-f]{30}$")  # DVC's name of a file in its cache
EMPTIED = ".emptied"  # ends the name of a batch that is removed unless it has other files
Taken = str | None  # the text of a record to remove (blank for one without text, and for a judgment); None: the record stays


class Record(NamedTuple):
    """A line (or row) of a file as it is. `is_blank`: it has no record, like a header."""

    raw: bytes
    taken: Taken
    is_malformed: bool = False
    is_blank: bool = False


class Found(NamedTuple):
    """The texts of the records to remove from a file, whether any line is malformed, and whether another record, or such a line, stays."""

    removed: list[str]
    is_malformed: bool
    keeps: bool


class Withdrawn(NamedTuple):
    """How many records were removed, by file, and their texts. `unread`: files that cannot be read, at least in part."""

    counts: dict[str, int]
    texts: list[str]
    unread: list[str]


def withdraw_records(kind: str, folder: Path, marks: Collection[str], *, dry: bool) -> Withdrawn:
    """Remove the records of `marks` from the files of a folder. `dry`: change nothing.

    A batch's file without a record left is removed, and a batch without any is set aside: empty, they look like ones that are being
    written. A batch is set aside first: killed in between, it is still one that retrainings leave alone, and the next call empties it.
    """
    forms = batch_forms(folder) if kind == "batch" else (kind,)
    found = {(form, name, path): _find(form, name, path, marks) for form in forms for name, path in files(form, folder)}
    affected = {(form, name, path): _target(path) for (form, name, path), file in found.items() if file.removed}
    counts = {str(path): len(found[form, name, path].removed) for form, name, path in affected}
    texts = [text for file in found.values() for text in filter(str.strip, file.removed)]
    withdrawn = Withdrawn(counts, texts, [str(path) for (_, _, path), file in found.items() if file.is_malformed])
    if dry:
        return withdrawn
    is_emptied = kind == "batch" and bool(affected) and not any(file.keeps for file in found.values())
    former = folder.resolve()
    place = _set_aside(folder) if is_emptied else folder
    for (form, name, path), target in affected.items():
        if kind == "batch" and not found[form, name, path].keeps:  # a file of both forms, or with two names, may be gone
            moved = place.resolve() / target.relative_to(former) if target.is_relative_to(former) else target
            moved.unlink(missing_ok=True)
            (place / path.relative_to(folder)).unlink(missing_ok=True)
        elif target.exists():
            _rewrite(target, (record.raw for record in records(form, name, path, marks) if record.taken is None))
    is_aside = kind == "batch" and place.name.startswith(".") and place.name.endswith(EMPTIED)
    if is_aside and all(path.is_dir() for path in place.rglob("*")):  # any other file is the user's
        delete(place)
    return withdrawn


def _set_aside(batch: Path) -> Path:
    """Rename a batch to begin with a dot, so that retrainings go on without it: a missing or empty one stops them. Return its new place,
    which ends in EMPTIED, once or more, if one of that name has been set aside before.
    """
    if batch.name.startswith("."):
        return batch
    aside = batch.with_name(f".{batch.name}")
    while aside.exists():
        aside = aside.with_name(f"{aside.name}{EMPTIED}")
    return batch.rename(aside)


def _target(path: Path) -> Path:
    """The file itself, behind links, so that no record stays in it. UserError if it is an object of a DVC cache."""
    target = path.resolve()
    if CACHED.search(target.as_posix()):
        raise UserError(f"{path}: found a link to {target}, an object of a DVC cache, which must not change; run dvc unprotect {path}")
    return target


def _find(form: str, name: str, path: Path, marks: Collection[str]) -> Found:
    """What a file has. In malformed CSV, rows are unclear, so none is removed."""
    removed, is_malformed, keeps = list[str](), False, False
    try:
        for record in records(form, name, path, marks):
            is_malformed |= record.is_malformed
            if record.taken is not None:
                removed.append(record.taken)
            else:
                keeps |= not record.is_blank
    except (csv.Error, UnicodeDecodeError):
        return Found([], is_malformed=True, keeps=True)
    return Found(removed, is_malformed, keeps)


def count_in_pairs(file: Path, columns: str, marks: Collection[str], texts: Collection[tuple[str, str]] = ()) -> Withdrawn:
    """The number of records of `marks` in a file of pairs, and their texts. `columns`: the columns that the data set's SPEC names.

    `texts`: kind and digest of texts that are such records under any id, as a retraining counts them (tasks.prepare.commands.joined_ids).
    """
    found: dict[tuple[str, str], str] = {}
    try:
        for kind, name, key, text in _records_in_pairs(file, columns):
            if mark(kind, name or key) in marks or mark(kind, key) in marks or (kind, key) in texts:
                found.setdefault((kind, key), text)
    except (UserError, OSError):
        return Withdrawn({}, [], [str(file)])
    return Withdrawn({str(file): len(found)} if found else {}, [*found.values()], [])


def marked_texts(file: Path, columns: str, marks: Collection[str]) -> set[tuple[str, str]]:
    """Kind and digest of the texts whose ids in a file of pairs have one of `marks`. UserError or OSError if it cannot be read."""
    names: dict[tuple[str, str], str] = {}
    for kind, name, key, _ in _records_in_pairs(file, columns):
        names[kind, key] = names.get((kind, key)) or name  # the first id of a text counts
    return {(kind, key) for (kind, key), name in names.items() if mark(kind, name or key) in marks}


def _records_in_pairs(file: Path, columns: str) -> Iterator[tuple[str, str, str, str]]:
    """Kind, id ("": none), digest, and text of every record, as often as a row has it."""
    for row in pairs.rows(pairs_file(file), columns):
        yield "document", row.document, digest(row.passage, row.title), row.passage
        yield "query", row.query_id, digest(row.query), row.query
        yield from (("document", "", digest(text), text) for text in row.negatives)


def batch_forms(folder: Path) -> tuple[str, ...]:
    """The forms of a batch's files, csv or beir, as flows.batches.records tells them apart.

    A batch that mixes them, and so is never merged, has both.
    """
    names = [path.name.removesuffix(".gz") for path in folder.iterdir() if path.is_file()]
    tables = any(name in names for name in ("corpus.csv", "corpus.tsv", "queries.csv", "queries.tsv", "negatives.csv"))
    in_csv = tables or any(path.name.removesuffix(".gz").endswith(".csv") for path in (folder / "qrels").glob("*"))
    beir = not in_csv or "corpus.jsonl" in names or "queries.jsonl" in names
    return (*(["csv"] if in_csv else []), *(["beir"] if beir else []))


def files(kind: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder, each with its table: documents, queries, qrels, or negatives."""
    endings = (".jsonl",) if kind == "beir" else (".csv", ".tsv")
    for stem, name in (("corpus", "documents"), ("queries", "queries")):
        yield from ((name, path) for ending in endings for gz in ("", ".gz") if (path := folder / f"{stem}{ending}{gz}").is_file())
    qrels_endings = (".tsv",) if kind == "beir" else (".csv", ".tsv")
    yield from (("negatives", path) for end in qrels_endings for gz in ("", ".gz") if (path := folder / f"negatives{end}{gz}").is_file())
    qrels_files = sorted((folder / "qrels").iterdir()) if (folder / "qrels").is_dir() else []
    yield from (("qrels", path) for path in qrels_files if path.name.removesuffix(".gz").endswith(qrels_endings) and path.is_file())


def records(kind: str, name: str, path: Path, marks: Collection[str]) -> Iterator[Record]:
    """Every line (or row) of a file.

    UserError if the file cannot be decompressed, or its header has two delimiters. csv.Error or UnicodeDecodeError if it is malformed
    CSV.
    """
    try:
        with open_unpacked(path) as handle:
            if kind == "beir" and name in ("documents", "queries"):
                yield from (_json_record(raw, name, marks) for raw in handle)
            elif kind == "beir" and name == "qrels":
                yield from (_judgment(raw, number, marks) for number, raw in enumerate(handle, 1))
            else:
                yield from _rows(handle, name, path, marks)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: corrupt gzip ({error}), so what it holds is unknown; replace or remove it, then run again") from None


def _json_record(raw: bytes, name: str, marks: Collection[str]) -> Record:
    try:
        record = parse_line(_text(raw))
        identity, text = str(record["_id"]), f"{record.get('text') or ''}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Record(raw, None, is_malformed=bool(raw.strip()), is_blank=not raw.strip())
    return Record(raw, text if mark(_record(name), identity) in marks else None)


def _judgment(raw: bytes, number: int, marks: Collection[str]) -> Record:
    try:
        cells = _text(raw).rstrip("\r\n").split("\t")
    except UnicodeDecodeError:
        return Record(raw, None, is_malformed=True)
    is_header = number == 1 and len(cells) > 2 and is_heading(cells[2])
    return Record(raw, _judged(cells, (0, 1), marks), is_blank=is_header or not raw.strip())


def _rows(handle: IO[bytes], name: str, path: Path, marks: Collection[str]) -> Iterator[Record]:
    pending: list[bytes] = []

    def lines() -> Iterator[str]:
        for raw in handle:
            pending.append(raw)
            yield _text(raw)

    csv.field_size_limit(LARGEST_CELL)
    with open_unpacked(path) as beginning:
        delimiter = delimiter_of(path, map(_text, beginning))
    places: list[int | None] = []
    width = 0
    for number, cells in enumerate(csv.reader(lines(), delimiter=delimiter, strict=True)):  # as prepare reads
        raw, removed, is_blank = b"".join(pending), None, False
        pending.clear()
        if not any(cell.strip() for cell in cells) or (number == 0 and declares_delimiter(cells, delimiter)):
            is_blank = True
        elif not places:
            places, width, is_blank = _places(name, [cell.strip() for cell in cells]), len(cells), True
        elif len(cells) != width:
            raise csv.Error(f"found {len(cells)} cells, expected {width} as in the header")
        elif name in ("qrels", "negatives"):
            removed = _judged(cells, (places[0], places[1]), marks)
        elif (identity := _cell(cells, places[0])) is not None and mark(_record(name), identity) in marks:
            removed = _cell(cells, places[-1]) or ""
        yield Record(raw, removed, is_blank=is_blank)


def _places(name: str, header: Sequence[str]) -> list[int | None]:
    """The places of a table's columns, as prepare finds them; None for an optional one. csv.Error if one is missing or repeated."""
    places = [next((header.index(candidate) for candidate in names if candidate in header), None) for names in NAMES[name]]
    if any(place is None and names != TITLE for names, place in zip(NAMES[name], places, strict=True)):
        raise csv.Error(f"found columns {', '.join(header)}")
    if any(place is not None and header.count(header[place]) > 1 for place in places):
        raise csv.Error("found a column twice")
    return places


def _judged(cells: Sequence[str], places: tuple[int | None, int | None], marks: Collection[str]) -> Taken:
    query, doc = (_cell(cells, place) for place in places)
    is_marked = (query is not None and mark("query", query) in marks) or (doc is not None and mark("document", doc) in marks)
    return "" if is_marked else None


def _cell(cells: Sequence[str], place: int | None) -> str | None:
    return None if place is None or place >= len(cells) else cells[place].rstrip("\r\n")


def _record(name: str) -> str:
    return "document" if name == "documents" else "query"


def _text(raw: bytes) -> str:
    return raw.removeprefix(BOM).decode("utf-8")


def _rewrite(path: Path, lines: Iterator[bytes]) -> None:
    with new_file(path) as temporary:
        with gzip.GzipFile(temporary, "wb", mtime=0) if is_gzip(path) else temporary.open("wb") as out:
            out.writelines(lines)
        temporary.chmod(path.stat().st_mode)


def main() -> None:
    request = json.load(sys.stdin)
    total = Withdrawn({}, [], [])
    marks = frozenset(request["marks"])
    texts = set[tuple[str, str]]()
    if base := request["base"]:
        try:
            texts = marked_texts(Path(base), request["columns"], marks)
        except (UserError, OSError):
            total.unread.append(base)
    for folder in map(Path, request["folders"]):
        if request["kind"] == "pairs":
            withdrawn = count_in_pairs(folder, request["columns"], marks, texts)
        else:
            withdrawn = withdraw_records(request["kind"], folder, marks, dry=request["dry"])
        total.counts.update(withdrawn.counts)
        total.texts.extend(withdrawn.texts)
        total.unread.extend(withdrawn.unread)
    print(json.dumps({"files": total.counts, "texts": total.texts, "unread": total.unread}))


if __name__ == "__main__":
    with stage():
        main()
