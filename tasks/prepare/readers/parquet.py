"""Folders of Parquet files, and Hugging Face datasets saved on disk (`save_to_disk`), read in batches.

    documents | corpus    documents.parquet, or a folder of shards, or a saved Dataset or DatasetDict (its splits in order)
    queries               the same; by split if the shards or the DatasetDict's splits are named after splits
    qrels | default       by split: qrels/{train,dev,test}.parquet, Hugging Face's train-00000-of-00001.parquet, a DatasetDict
    negatives             ready-made negatives, best first: query and document as in qrels (optional)

Columns, the first one found: documents _id | id | docid | doc_id | pid, title (optional), text | passage | body;
queries _id | id | qid | query_id | query-id, text | query, answers (a list of strings, optional); qrels query-id | query_id | qid
| query, corpus-id | corpus_id | docid | doc_id | doc | pid, score | grade | relevance, weight (a number above 0, optional; null is 1).
Ids may be integers. The corpus format that this stage writes is one of these, so a prepared corpus can be read back.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import HALVES
from tasks.core.sources.columns import ANSWERS, DOCUMENT_ID, QREL_DOC, QREL_GRADE, QREL_QUERY, QUERY_ID, QUERY_TEXT, TEXT, TITLE, WEIGHT
from tasks.core.sources.datasets import MAKE_QUERIES, SPLIT_NAMES, parquet_files
from tasks.core.sources.grades import EXPECTED, MOST
from tasks.core.tables.parquet import BATCH_ROWS, UNREADABLE, open_parquet, refuse_damage
from tasks.prepare.readers.lines import weight
from tasks.prepare.source import At, Document, Documents, Negative, Qrel, Query, Source

Files: TypeAlias = tuple[Path, ...]
T = TypeVar("T")
SHARD = re.compile(r"-\d+-of-\d+(-[0-9a-f]{8,})?$")  # Hugging Face's shard names; older ones end with a hash


class Batch(NamedTuple):
    """Rows of a file after the first `start`: the rows in `raw`, an Arrow stream, or if it is None, all the rest."""

    file: Path
    start: int
    raw: bytes | None = None


def read(folder: Path, *, needs_qrels: bool = True) -> Source:
    """The tables in `folder`. Documents alone if it has no qrels and `needs_qrels` is false."""
    parquet_files(folder)
    corpus = tuple(file for files in _tables(folder, "documents", "corpus").values() for file in files)
    if not any((folder / f"{name}{end}").exists() for name in ("qrels", "default") for end in ("", ".parquet")):
        if not needs_qrels:
            return Source(partial(documents, corpus), {}, {}, parts=partial(parts, corpus))
        raise UserError(f"{folder / 'qrels'}: not found, expected qrels/SPLIT.parquet; add one, or {MAKE_QUERIES}")
    texts = _by_split(_tables(folder, "queries"))
    tables = _tables(folder, "qrels", "default")
    if unknown := [files[0] for key, files in tables.items() if key not in SPLIT_NAMES]:
        raise UserError(
            f"{unknown[0]}: found qrels of an unknown split, expected qrels/train.parquet, dev.parquet, or test.parquet; rename it"
        )
    judged = _by_split(tables)
    missing = [split for split in judged if "" not in texts and split not in texts]
    if missing:
        raise UserError(f"{folder / 'queries'}: no queries for split {missing[0]}, which has qrels; add queries/{missing[0]}.parquet")
    return Source(
        documents=partial(documents, corpus),
        queries={key: partial(queries, files) for key, files in texts.items() if key in {"", *judged}},
        qrels={split: partial(qrels, files) for split, files in judged.items()},
        negatives=partial(negatives, tuple(file for files in _table(folder, "negatives").values() for file in files)),
        parts=partial(parts, corpus),
    )


def parts(files: Files) -> Iterator[Documents]:
    """Cut the documents into parts of one batch. If reading a file fails, the last part stands for its rest, and raises when it is read."""
    for file in files:
        row = 0
        try:
            for batch in _batches(file):
                yield partial(documents, (Batch(file, row, _serialized(batch)),))
                row += len(batch)
        except (*UNREADABLE, OSError):
            yield partial(documents, (Batch(file, row),))


def documents(files: Files | tuple[Batch]) -> Iterator[Document]:
    for at, (doc, title, text) in read_rows(files, [DOCUMENT_ID, TITLE, TEXT], optional=TITLE):
        yield Document(at, as_id(at, doc), "" if title is None else as_string(at, "title", title), as_text(at, text))


def queries(files: Files) -> Iterator[Query]:
    for at, (query, text, answers) in read_rows(files, [QUERY_ID, QUERY_TEXT, ANSWERS], optional=ANSWERS):
        answers = [] if answers is None else answers
        if not isinstance(answers, list):
            raise UserError(f"{at}: found answers {answers!r}, expected a list of strings; fix that column")
        yield Query(at, as_id(at, query), as_text(at, text), [as_string(at, "answer", a) for a in answers])


def qrels(files: Files) -> Iterator[Qrel]:
    for at, (query, doc, grade, weighs) in read_rows(files, [QREL_QUERY, QREL_DOC, QREL_GRADE, (WEIGHT,)], optional=(WEIGHT,)):
        if isinstance(grade, bool) or not isinstance(grade, int | float) or not _small_integer(grade):
            raise UserError(f"{at}: found grade {grade!r}, expected {EXPECTED}; fix that row")
        yield Qrel(at, as_id(at, query), as_id(at, doc), int(grade), 1.0 if weighs is None else weight(at, str(weighs)))


def negatives(files: Files) -> Iterator[Negative]:
    for at, (query, doc) in read_rows(files, [QREL_QUERY, QREL_DOC]):
        yield Negative(at, as_id(at, query), as_id(at, doc))


def _tables(folder: Path, *names: str) -> dict[str, Files]:
    """The files of the table with one of `names`, by split or shard name ("": files without either). UserError if none or two exist."""
    tables = {name: files for name in names if (files := _table(folder, name))}
    if len(tables) > 1:
        raise UserError(f"{folder}: found tables {' and '.join(tables)}, expected only one of them; keep one")
    if not tables:
        name = names[0]
        raise UserError(f"{folder / name}.parquet: not found, expected it, or {name}/ with Parquet shards or a saved dataset; add one")
    return next(iter(tables.values()))


def _table(folder: Path, name: str) -> dict[str, Files]:
    """The files of a table, by split or shard name; empty if there is no such table."""
    single_file, table_folder = folder / f"{name}.parquet", folder / name
    if single_file.is_file() and table_folder.is_dir():
        raise UserError(f"{single_file}: the folder {table_folder.name}/ exists too, expected only one of them; keep one")
    if single_file.is_file():
        return {"": (single_file,)}
    if (table_folder / "dataset_dict.json").is_file():
        folders = _json(table_folder / "dataset_dict.json", lambda record: {split: table_folder / split for split in record["splits"]})
        return {split: _saved(split_folder) for split, split_folder in folders.items()}
    if (table_folder / "state.json").is_file():
        return {"": _saved(table_folder)}
    grouped: dict[str, list[Path]] = {}
    for file in sorted(table_folder.glob("*.parquet")):
        grouped.setdefault(SHARD.sub("", file.stem), []).append(file)
    return {key: tuple(files) for key, files in grouped.items()}


def _by_split(tables: dict[str, Files]) -> dict[str, Files]:
    """The files by split if every key is the name of a split, otherwise all files under ""."""
    if not set(tables) <= set(SPLIT_NAMES):
        return {"": tuple(file for files in tables.values() for file in files)}
    splits: dict[str, Files] = {}
    for key, files in tables.items():
        if SPLIT_NAMES[key] in splits:
            raise UserError(f"{files[0]}: {splits[SPLIT_NAMES[key]][0].name} is also split {SPLIT_NAMES[key]}; keep one of them")
        splits[SPLIT_NAMES[key]] = files
    return splits


def _saved(folder: Path) -> Files:
    """The Arrow files of a dataset saved on disk, in row order."""

    def read(state: Any) -> tuple[bool, Files]:
        selects = bool(state.get("_indices_files") or state.get("_indices_data_files"))
        return selects, tuple(folder / file["filename"] for file in state["_data_files"])

    selects, files = _json(folder / "state.json", read)
    if selects:
        raise UserError(
            f"{folder}: an index file selects the rows, which is not supported; call flatten_indices() and save the dataset again"
        )
    return files


def _json(path: Path, read: Callable[[Any], T]) -> T:
    """Apply `read` to the content of a JSON file of a saved dataset. UserError if it does not have the form that `read` expects."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: found unexpected content, expected what save_to_disk writes; save the dataset again") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}), expected what save_to_disk writes; save the dataset again") from None


def read_rows(
    files: Files | tuple[Batch], columns: Sequence[tuple[str, ...]], optional: tuple[str, ...] = (), *, named_only: bool = False
) -> Iterator[tuple[At, tuple[Any, ...]]]:
    """For every row, its values in `columns`, each given by its possible names; None for an `optional` column that is absent.

    `named_only`: leave the other columns of Parquet files on disk; a message about a missing column cannot list them then.
    """
    wanted = [name for names in columns for name in names] if named_only else None
    for source in files:
        file, start, raw = source if isinstance(source, Batch) else Batch(source, 0)
        row = 0 if raw is None else start
        try:
            for batch in _batches(file, wanted) if raw is None else pa.ipc.open_stream(raw):
                column_values = [_column(file, batch, names, names == optional) for names in columns]
                for values in zip(*column_values, strict=True):
                    row += 1
                    if row > start:
                        yield At(file, row), values
        except FileNotFoundError:
            raise UserError(f"{file}: not found; add it, or save the dataset again") from None
        except UNREADABLE as error:
            kind = "Arrow" if file.suffix == ".arrow" else "Parquet"
            refuse_damage(error, f"{file}: cannot be read as {kind} with UTF-8 texts after row {row} ({error}); write it again")


def _serialized(batch: pa.RecordBatch) -> bytes:
    """A batch of documents as an Arrow stream, without the columns that no reader asks for."""
    known_names = [name for names in (DOCUMENT_ID, TITLE, TEXT) for name in names if name in batch.schema.names]
    is_complete = {*known_names} & {*DOCUMENT_ID} and {*known_names} & {*TEXT} and len({*batch.schema.names}) == len(batch.schema.names)
    selected = batch.select(known_names) if is_complete else batch  # if a column is missing, the error must list all
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, selected.schema) as stream:
        stream.write_batch(selected)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def _batches(file: Path, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of rows; of Parquet, with the columns `names`, or all."""
    if file.suffix == ".arrow":
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    else:
        with open_parquet(file) as table:
            yield from table.iter_batches(BATCH_ROWS, columns=names)


def _column(file: Path, batch: pa.RecordBatch, names: tuple[str, ...], optional: bool) -> list[Any]:
    column = next((name for name in names if name in batch.schema.names), None)
    if column is not None:
        if (times := batch.schema.names.count(column)) > 1:
            raise UserError(f"{file}: found column {column} {times} times, expected it once; rename or drop one")
        kind = batch.schema.field(column).type
        if pa.types.is_temporal(kind):  # Python cannot represent every such value
            raise UserError(f"{file}: found column {column} of type {kind}, expected strings or numbers; convert it")
        values: list[Any] = batch.column(column).to_pylist()
        return values
    if optional:
        return [None] * len(batch)
    raise UserError(f"{file}: found columns {', '.join(batch.schema.names)}, expected {' or '.join(names)}; rename one")


def names_of(file: Path) -> list[str]:
    """The names of a Parquet file's columns."""
    try:
        with open_parquet(file) as table:
            return list(table.schema_arrow.names)
    except UNREADABLE as error:
        refuse_damage(error, f"{file}: cannot be read as Parquet ({error}); write it again")


def _small_integer(grade: float) -> bool:
    return float(grade).is_integer() and -(2**31) < grade <= MOST


def as_id(at: At, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{at}: found id {value!r}, expected a string or an integer; fix that row")
    if isinstance(value, str) and HALVES.search(value):
        raise UserError(f"{at}: found id {value!r}, expected one without an unpaired surrogate (\\ud800 to \\udfff); fix that row")
    return str(value)


def as_text(at: At, value: object) -> str:
    """The text in a cell. A null is an empty text, like an empty cell of a CSV file; prepare.empty_texts decides what happens to it."""
    return "" if value is None else as_string(at, "text", value)


def as_string(at: At, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{at}: found {name} {value!r}, expected a string; fix that row")
    return value
