"""Merge batches with the data set: documents and queries by id, judgments and negatives by pair; the later one wins.

A batch is a folder in BEIR or CSV form (flows.batches.records), any part of which may be missing, or a file of pairs, which is converted to
such a folder (flows.batches.pairs_files). Nothing is ever removed from an inbox: the result is a function of dataset.source and the
batches, so killing or repeating a run changes nothing.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from flows.batches.pairs_files import code_digest, origin
from flows.batches.records import Files, Form, beir_lines, files_of, lines
from tasks.core.errors import UserError
from tasks.core.files import file_stamp, new_folder, read_json, write_json
from tasks.core.params.safe_yaml import HALVES
from tasks.core.plurals import counted
from tasks.core.sources.columns import WEIGHT
from tasks.core.sources.datasets import PATH_KINDS, local_path
from tasks.core.sources.grades import is_heading
from tasks.core.sources.pairs import file_and_columns
from tasks.core.sources.qrels import column_order_error

OUT = Path(".retemper/dataset")
STAMP = Path(".retemper/dataset.json")
NEGATIVES = "negatives.tsv"
NAMED = 3  # files of batches that a message names, the last ones
HEADER = "query-id\tcorpus-id\tscore"
Part = tuple[Files, Path]  # the files of a folder, and one of them


def absolute(source: str, project: Path) -> str:
    """`source`, a SPEC of a data set or of articles, with its path made absolute from `project`. A link to a file keeps its name."""
    kind, colon, place = source.partition(":")
    if colon and kind in (*PATH_KINDS, "dump", "jsonl"):
        file, columns = file_and_columns(place) if kind == "pairs" else (place, "")
        path = project / local_path(file)
        return f"{kind}:{path.parent.resolve() / path.name if path.is_file() else path.resolve()}{columns}"
    return source


def merge_folders(folders: list[Path], out: Path = OUT, stamp: Path = STAMP, *, form: Form | None = None) -> None:
    """Merge folders into the BEIR folder `out`: documents and queries by _id, the rest by (query, document); the later folder wins.
    What one folder has twice, and not equal, stays twice. `form`: of the first folder, a data set; batches tell theirs.

    The order is that of first appearance. Qrels get a fourth column, weight, if any part has one; it is 1 for the other parts. Ids and
    lines are in a temporary database on disk, so memory does not grow with the corpus. If the same code has merged them before, nothing
    is done. Raises UserError for a malformed line.
    """
    parts: dict[str, list[Part]] = {"corpus.jsonl": [], "queries.jsonl": []}
    for number, folder in enumerate(folders):
        files = files_of(folder, None if number else form)
        by_name = {"corpus.jsonl": files.documents, "queries.jsonl": files.queries, NEGATIVES: files.negatives}
        for name, path in (by_name | {f"qrels/{split}.tsv": path for split, path in files.qrels.items()}).items():
            if path:
                parts.setdefault(name, []).append((files, path))
    stamps: dict[str, Any] = {name: [_stamp(files, path) for files, path in members] for name, members in parts.items()}
    stamps["code"] = code_digest("flows.batches.merge", "flows.batches.records")
    if out.is_dir() and stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == stamps:
        return
    stamp.unlink(missing_ok=True)
    with new_folder(out) as folder:
        (folder / "qrels").mkdir()
        for name, members in parts.items():
            is_qrels = name.startswith("qrels/")
            weighted = is_qrels and any(_weighted(files, path) for files, path in members)
            header, key = (HEADER, _judged) if is_qrels else ("query-id\tcorpus-id", _listed) if name == NEGATIVES else ("", _identified)
            with (folder / name).open("w", encoding="utf-8") as handle:
                if header:
                    handle.write(f"{header}\t{WEIGHT}\n" if weighted else f"{header}\n")
                for line in _merge_lines(members, key, folder / "ids.db"):
                    handle.write(f"{line}\t1\n" if weighted and line.count("\t") == 2 else f"{line}\n")
    write_json(stamp, stamps)


def name_batches(message: str, project: Path) -> str:
    """Add the batches that lines came from to a message that names a file of `project`'s merged data set; return others unchanged."""
    try:
        return _name_own_files(message, project)
    except (UserError, OSError):  # a batch has changed or gone since
        return message


def _name_own_files(message: str, project: Path) -> str:
    match = re.search(rf"{re.escape(str((project / OUT).resolve()))}/([^\s:]+)(?::(\d+))?: ", message)
    merged = read_json(project / STAMP) if match and (project / STAMP).exists() else {}
    if not match or match[1] not in merged:
        return message
    parts: list[tuple[Path, Form]] = [(Path(path), form) for path, form, *_ in merged[match[1]]]
    if match[2]:
        with (project / OUT / match[1]).open(encoding="utf-8") as handle:
            line = next(islice(handle, int(match[2]) - 1, None), "").rstrip("\n")
        parts = next(([part] for part in reversed(parts) if _has_line(*part, line)), parts)
    earlier = f" and {len(parts) - NAMED} earlier" if len(parts) > NAMED else ""
    names = f"{', '.join(str(origin(path)) for path, _ in parts[-NAMED:])}{earlier}"
    return f"{message} (merged from {names}; to exclude a batch, begin its name with a dot)"


def _has_line(path: Path, form: Form, merged_line: str) -> bool:
    files = files_of(path.parent.parent if path.parent.name == "qrels" else path.parent, form)
    return any(merged_line in (line, f"{line}\t1") for _, line in _lines(files, path))


def _stamp(files: Files, path: Path) -> list[str | int]:
    return [str(path.resolve()), "csv" if files.csv else "beir", *file_stamp(path)]


def _merge_lines(parts: Iterable[Part], key: Callable[[Path, int, str], str | None], database: Path) -> Iterator[str]:
    """The lines of `parts`, one per key: the last line with that key, in the place of the first.

    Different lines of one part with the same key are all kept, below one another: prepare refuses what contradicts itself.
    """
    with closing(sqlite3.connect(database)) as table:
        table.execute("PRAGMA journal_mode = OFF")
        table.execute("PRAGMA synchronous = OFF")
        table.execute("CREATE TABLE lines (place INTEGER PRIMARY KEY, key TEXT UNIQUE, part INTEGER, line TEXT)")
        rows = (
            (line_key, part, line)
            for part, (files, path) in enumerate(parts)
            for number, line in _lines(files, path)
            if (line_key := key(path, number, line)) is not None
        )
        table.executemany(
            "INSERT INTO lines (key, part, line) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET part = excluded.part, line = "
            "CASE WHEN part = excluded.part AND line <> excluded.line THEN line || char(10) || excluded.line ELSE excluded.line END",
            rows,
        )
        for (text,) in table.execute("SELECT line FROM lines ORDER BY place"):
            yield from text.split("\n")
    database.unlink()


def _lines(files: Files, path: Path) -> Iterator[tuple[int, str]]:
    return beir_lines(files, path) if files.csv or path == files.negatives else lines(path, _refuse)


def _refuse(line: str) -> None:
    raise UserError(f"{line}; save the file as UTF-8, or as gzip if its name ends in .gz")


def _weighted(files: Files, path: Path) -> bool:
    """Whether a file of qrels has weights: a fourth column in its header, or for CSV a weight in any row."""
    if files.csv:
        return any(line.count("\t") == 3 for _, line in beir_lines(files, path))
    first = next(lines(path, _refuse), (1, ""))[1]
    return first.split("\t")[3:] == [WEIGHT]


def _identified(path: Path, number: int, line: str) -> str:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or "_id" not in record:
        raise UserError(f"{path}:{number}: found no JSON object with _id; fix that line")
    if HALVES.search(str(record["_id"])):  # which the database refuses
        raise UserError(
            f"{path}:{number}: _id contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text; fix that line"
        )
    return str(record["_id"])


def _listed(_path: Path, _number: int, line: str) -> str:
    return line


def _judged(path: Path, number: int, line: str) -> str | None:
    fields = line.split("\t")
    if len(fields) < 3:
        raise UserError(
            f"{path}:{number}: found {counted(len(fields), 'columns')}, expected query-id, corpus-id and score, separated by tabs; "
            "fix that line"
        )
    if number > 1 or not is_heading(fields[2]):
        return f"{fields[0]}\t{fields[1]}"
    if problem := column_order_error(fields):
        raise UserError(f"{path}:1: {problem}; swap them")
    return None
