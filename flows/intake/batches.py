"""Takes in new data: batches that others put into an inbox, merged with the data set or used instead of it.

A batch is a BEIR folder below the inbox (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, each optional, plain or .gz); a name
that begins with a dot is still being written. Nothing is ever removed from an inbox: the result is a function of
dataset.source and all batches, so a run that was killed or repeated changes nothing.
"""

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.intake.settings import FILE, Intake
from tasks.core.sources.datasets import FOLDER_KINDS, beir_qrels, local_path, parse_dataset
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import new_folder, write_json

OUT = Path(".retemper/dataset")
STAMP = Path(".retemper/dataset.json")
FILES = ("corpus.jsonl", "queries.jsonl")


def take_in(intake: Intake, source: str, project: Path) -> str:
    """The SPEC to train on: `source` itself, the last batch, or a folder (below the current one) that merges them all.

    `inbox` and `source` are relative to `project`. UserError where the inbox is unavailable or `source` cannot be merged.
    """
    if intake.inbox is None:
        return absolute(source, project)
    batches = list_batches(intake.inbox, project)
    if not batches:
        return absolute(source, project)
    if intake.mode == "replace":
        return f"beir:{batches[-1].resolve()}"
    spec = parse_dataset(absolute(source, project))
    if spec.kind != "beir":
        raise UserError(
            f"{FILE}: intake.mode: append needs a data set in BEIR form, found dataset.source {source}; use replace, or beir:PATH"
        )
    unite([spec.folder, *batches])
    return f"beir:{OUT.resolve()}"


def list_batches(inbox: str, project: Path) -> list[Path]:
    """The batches of `inbox`, which is relative to `project`, in the order in which they are merged. UserError where it is unavailable."""
    folder = project / local_path(inbox)
    if not folder.is_dir():
        raise UserError(f"{FILE}: intake.inbox: {folder}: no such folder; create it, or give access")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def absolute(source: str, project: Path) -> str:
    """`source`, a SPEC of a data set or of articles, with its path made absolute from `project`."""
    kind, colon, place = source.partition(":")
    if colon and kind in (*FOLDER_KINDS, "dump", "jsonl"):
        return f"{kind}:{(project / local_path(place)).resolve()}"
    return source


def unite(folders: list[Path], out: Path = OUT, stamp: Path = STAMP) -> None:
    """Merge BEIR folders into `out`: documents and queries by _id, judgments by (query, document); the later folder wins.

    The order is that of first appearance. Ids and lines are in a temporary database on disk, so memory does not grow with
    the corpus. Nothing is done where the same files were merged before.
    """
    parts = {name: [path for folder in folders if (path := _plain_or_gz(folder / name))] for name in FILES}
    for judged in map(beir_qrels, folders):
        for split, path in judged.items():
            parts.setdefault(f"qrels/{split}.tsv", []).append(path)
    stamps = {name: [_stamp(path) for path in paths] for name, paths in parts.items()}
    if out.is_dir() and stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == stamps:
        return
    stamp.unlink(missing_ok=True)
    with new_folder(out) as folder:
        (folder / "qrels").mkdir()
        for name, paths in parts.items():
            key, header = (_judged, "query-id\tcorpus-id\tscore\n") if name.startswith("qrels/") else (_identified, "")
            with (folder / name).open("w", encoding="utf-8") as handle:
                handle.write(header)
                handle.writelines(_united(paths, key, folder / "ids.db"))
    write_json(stamp, stamps)


def _stamp(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _united(paths: Iterable[Path], key: Callable[[Path, int, str], str | None], database: Path) -> Iterator[str]:
    """The lines of `paths`, one for each key: the last one, in the place of the first."""
    with closing(sqlite3.connect(database)) as table:
        table.execute("PRAGMA journal_mode = OFF")
        table.execute("PRAGMA synchronous = OFF")
        table.execute("CREATE TABLE lines (place INTEGER PRIMARY KEY, key TEXT UNIQUE, line TEXT)")
        rows = ((found, line) for path in paths for number, line in _lines(path) if (found := key(path, number, line)) is not None)
        table.executemany("INSERT INTO lines (key, line) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET line = excluded.line", rows)
        for (line,) in table.execute("SELECT line FROM lines ORDER BY place"):
            yield f"{line}\n"
    database.unlink()


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected UTF-8 text, gzip if the name ends in .gz") from None


def _identified(path: Path, number: int, line: str) -> str:
    try:
        record: Any = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "_id" not in record:
        raise UserError(f"{path}:{number}: found no JSON object with _id; fix that line")
    return str(record["_id"])


def _judged(path: Path, number: int, line: str) -> str | None:
    fields = line.split("\t")
    if len(fields) < 3:
        raise UserError(
            f"{path}:{number}: found {len(fields)} columns, expected query-id, corpus-id and score, separated by tabs; fix that line"
        )
    return None if number == 1 and not fields[2].strip().lstrip("-").isdigit() else f"{fields[0]}\t{fields[1]}"


def _plain_or_gz(path: Path) -> Path | None:
    return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)
