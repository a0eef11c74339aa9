"""A file of pairs as a batch: it is converted to a BEIR folder, which is read in its place.

The folder is .retemper/pairs/KEY/NAME of the project. A separate process writes it (tasks.prepare.commands.pairs_batch), and again if the
file, its columns, the data set, the forgotten records, or the code that reads it have changed. Messages on lines of the folder name the
rows of the file.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.batches.records import documents, files_of, queries
from flows.process import locks
from flows.process.problems import Problems
from flows.process.processes import Processes, environment
from tasks.core.errors import DiskError, Invalid, UserError
from tasks.core.files import file_stamp, new_folder, read_json, write_json
from tasks.core.sources.datasets import DatasetSpec, dataset_files, parse_dataset
from tasks.core.sources.forgotten import KINDS, Kind, marks_digest
from tasks.core.sources.pairs import is_pairs_file, pairs_file
from tasks.core.stage.code import Reader
from tasks.core.text.plain import digest

FOLDER = Path(".retemper/pairs")
SHARED = (
    "shared.json"  # in each folder, of texts that not all rows have under one id: {"document", "query": {id: [digest of the text, row]}}
)
OF = "of.json"  # in each folder: what it was made from
READER = "tasks.prepare.commands.pairs_batch"  # writes the folder
ROOT = Path(__file__).resolve().parents[2]  # of the code that is running, whatever the current folder has
Shared = dict[Kind, dict[str, tuple[str, int]]]  # as in SHARED
LEAKING = re.compile(r"\bquery '([^']*)' (?=has the text|is judged)")


@dataclass(frozen=True)
class PairsFiles:
    """The files of pairs of a project. `source`: its data set, with an absolute path; `marks`: of forgotten records.

    `alone`: each file is a data set by itself, so the data set is not read.
    """

    project: Path
    source: DatasetSpec
    marks: Collection[str] = ()
    alone: bool = False
    processes: Processes = field(default_factory=Processes)

    def spec(self, path: Path) -> str:
        """The SPEC of a file of the inbox, with the columns that the data set's SPEC names. A link keeps its name."""
        return f"pairs:{path.parent.resolve() / path.name}{self.source.columns}"

    def folder(self, path: Path) -> Path:
        """`path`, if it is a folder, else the folder with the rows of the file. Raises UserError if the file cannot be read."""
        if path.is_dir():
            return path
        if not os.access(path, os.R_OK):  # not a fault of the disk, which would end the retraining
            raise UserError(f"{path}: no permission to read it, expected a file of pairs; give access")
        base = "" if self.alone or self._is_source(path) else str(self.source)
        source_files = dataset_files(self.source, needs_qrels=False) if base else ()
        folder = self._place(path)
        about = {
            "code": code_digest(READER),
            "source": self.spec(pairs_file(path)),
            "base": base,
            "files": [file_stamp(path), *([str(file), *file_stamp(file)] for file in source_files)],
            "marks": marks_digest(self.marks),
        }
        about = json.loads(json.dumps(about))
        with locks.wait_and_hold(folder.parent.with_suffix(".lock")):  # a check by hand may run beside a retraining
            if not (folder / OF).exists() or read_json(folder / OF) != about:
                with new_folder(folder) as temporary:
                    self._write(about["source"], base, temporary)
                    write_json(temporary / OF, about)
        return folder

    def drop(self, path: Path) -> None:
        """Remove the folder that was made from a file; that of the data set stays, since others may be reading it."""
        if not self._is_source(path):
            shutil.rmtree(self._place(path), ignore_errors=True)

    def _is_source(self, path: Path) -> bool:
        return self.source.kind == "pairs" and path.resolve() == self.source.folder.resolve()

    def _place(self, path: Path) -> Path:
        key = hashlib.sha256(str(path.parent.resolve()).encode()).hexdigest()[:16]
        return (self.project / FOLDER / key / path.name).resolve()

    def _write(self, source: str, base: str, folder: Path) -> None:
        output = list[str]()
        with TemporaryDirectory() as scratch:
            problems, request = Problems(Path(scratch, "problems")), Path(scratch, "asked.json")
            asked = {"source": source, "base": base, "marks": sorted(self.marks), "folder": str(folder)}
            request.write_text(json.dumps(asked))
            command = [sys.executable, "-m", READER, str(request)]
            status = self.processes.run(command, output.append, environment(**problems.environment), folder=ROOT)
            failures = problems.take()
        if failures:
            raise (DiskError if failures[0].kind == DiskError.kind else UserError)(failures[0].message)
        if status:
            raise RuntimeError(f"{command[2]} ended with status {status}: {output[-1] if output else 'no message'}")


def refuse_changes(path: Path, folder: Path, others: Sequence[Path]) -> None:
    """UserError if a batch at `path`, read from `folder`, and one of the `others`, folders too, give an id two texts, unless both have all
    rows with their text under that id (SHARED has those that do not): such a row would get the other text as well."""
    for kind in KINDS:
        mine, theirs = _shared(folder, kind), {other: _shared(other, kind) for other in others}
        wanted = {name for shared in theirs.values() for name in shared}
        own = [(name, text, f"{path}:{line}") for name, (text, line) in mine.items()]
        own += [(name, text, at) for name, text, at in _texts(folder, kind) if name in wanted] if wanted else []
        for other, shared in theirs.items():
            for name, text, at in own:
                if name in shared and shared[name][0] != text:
                    raise _refusal(kind, name, at=name_pairs_file(at, folder, path), other=other, has_shared="there")
            for name, text, _ in _texts(other, kind) if mine else ():
                if name in mine and mine[name][0] != text:
                    raise _refusal(kind, name, at=f"{path}:{mine[name][1]}", other=other, has_shared="here")


def _shared(folder: Path, kind: Kind) -> dict[str, tuple[str, int]]:
    shared: Shared = read_json(folder / SHARED) if (folder / SHARED).exists() else {}
    return shared.get(kind, {})


def _texts(folder: Path, kind: Kind) -> Iterator[tuple[str, str, str]]:
    """Id, digest, and place of every document, or query, of a folder."""
    files = files_of(folder)
    if kind == "document":
        yield from ((one.id, digest(one.text, one.title), one.at) for one in documents(files, lambda _: None))
    else:
        yield from ((one.id, digest(one.text), one.at) for one in queries(files, lambda _: None))


def _refusal(kind: Kind, name: str, *, at: str, other: Path, has_shared: str) -> UserError:
    batch = origin(other / OF)
    return Invalid(
        where=at,
        found=f"another text for {kind} {name!r} than in {batch.parent if batch.name == OF else batch}, and the text {has_shared} is also "
        "under another id, or none",
        expected="texts that only that id has",
        remedy="change the row in the data set's own file instead, or in that batch if the data set lacks it",
    )


@cache
def code_digest(*modules: str) -> str:
    """SHA-256 of the running code of some modules, and of what they import from tasks: what other code made may differ."""
    reader = Reader(ROOT)
    return hashlib.sha256(" ".join(map(reader.module_digest, modules)).encode()).hexdigest()


def is_batch(path: Path) -> bool:
    """Whether an entry of an inbox is a batch: a folder, or a file whose name says that it has pairs."""
    return path.is_dir() or is_pairs_file(path)


def origin(path: Path) -> Path:
    """The file of pairs that `path`, a file of such a folder, was made from; any other path unchanged."""
    record = next((folder / OF for folder in path.parents if (folder / OF).is_file()), None)
    return parse_dataset(read_json(record)["source"]).folder if record else path


def name_pairs_file(text: str, folder: Path, file: Path) -> str:
    """A message about `folder`, reworded to name the `file` that it was made from, and its rows."""
    if folder == file:
        return text

    def row(match: re.Match[str]) -> str:
        return f"{file}:{_line(folder / f'{match[1]}.places', int(match[2]))}"

    def query(match: re.Match[str]) -> str:
        number = _number(folder / "queries.jsonl", match[1])
        return f"{file}:{_line(folder / 'queries.places', number)}: {match[0]}" if number else match[0]

    place = re.escape(str(folder))
    text = re.sub(rf"{place}/(corpus|queries)\.jsonl:(\d+)", row, text)
    return LEAKING.sub(query, re.sub(rf"{place}(/[^\s:]+)?", str(file).replace("\\", r"\\"), text))


def _line(places: Path, number: int) -> str:
    with places.open(encoding="utf-8") as handle:
        return next(islice(handle, number - 1, None), "").strip()


def _number(queries: Path, name: str) -> int:
    """The line number of a query; 0 if the file lacks it."""
    with queries.open(encoding="utf-8") as handle:
        return next((number for number, line in enumerate(handle, 1) if json.loads(line)["_id"] == name), 0)
