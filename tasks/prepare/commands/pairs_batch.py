"""Write a file of pairs as a BEIR folder that fits the data set it will be merged with. The process behind a file in an inbox
(flows.batches.pairs_files): `python -m tasks.prepare.commands.pairs_batch REQUEST`.

REQUEST is a JSON file {"source": SPEC of the file, "base": SPEC of the data set or empty, "marks": of forgotten records, "folder": FOLDER}.
A query whose text the data set has keeps the split that it has there, and so does one that the file corrects. If the data set is a file of
pairs too, equal texts get equal ids (tasks.prepare.commands.joined_ids), and new queries are divided as if the rows were in that file.
Memory holds the file's ids. `corpus.places` and `queries.places` in FOLDER have one line per record of the table: the row of the file that
it came from. shared.json has the texts that not all rows have under one id, which no other batch must replace: {"document", "query":
{ID: [digest of the text, row]}}.
"""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tasks.core.errors import Invalid, UserError
from tasks.core.files import write_json
from tasks.core.sources.datasets import DatasetSpec, parse_dataset
from tasks.core.sources.forgotten import Kind
from tasks.core.sources.pairs import Columns
from tasks.core.stage.entry import stage
from tasks.core.tables.schemas import SPLITS
from tasks.core.text.plain import digest
from tasks.prepare.commands.beir_folder import write_beir
from tasks.prepare.commands.joined_ids import JoinedIds
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.readers import kinds, pairs
from tasks.prepare.readers.pairs import Beside, Row, columns_in, rows
from tasks.prepare.source import Document, Query, Source

Record = TypeVar("Record", Document, Query)
Shared = dict[Kind, dict[str, tuple[str, int]]]  # as in SHARED
SHARED = "shared.json"
NAMING = ("title", "id", "query_id")  # columns that decide which texts are one record


@dataclass(frozen=True)
class Addition:
    """A file of pairs as an addition to a data set. `shared`: as in shared.json."""

    source: Source
    shared: Shared = field(default_factory=dict)


def read(spec: DatasetSpec, base: DatasetSpec | None = None, marks: Collection[str] = ()) -> Addition:
    """Read a file of pairs as an addition to the data set `base`, without the forgotten records of `marks`.

    UserError if it has no row, or if `base` is a file of pairs that names its records by different columns, or if a correction would
    change other rows, too.
    """
    columns = columns_in(spec.folder, spec.columns)
    if columns is None:
        raise UserError(f"{spec.folder}: found no row, expected a query and the passage that answers it; add one")
    if base is None:
        return Addition(without_forgotten(pairs.read(spec.folder, spec.columns), marks))
    if base.kind == "pairs":
        _refuse_other_names(spec, columns, base)
    digests, splits, queries, documents = set[str](), set[str](), JoinedIds("query"), JoinedIds("document")
    for row in rows(spec.folder, spec.columns):
        digests.add(digest(row.query))
        splits.add(row.split)
        if columns.id is not None:
            for record_id, text in _documents(row):
                documents.add(row.at, record_id, text)
        if columns.query_id is not None:
            queries.add(row.at, row.query_id, digest(row.query))
    if base.kind == "pairs":
        known_splits, base_splits = add_pairs(base, digests, queries=queries, documents=documents)
        splits |= base_splits
    else:
        known_splits = splits_of(kinds.read(base, needs_qrels=False), digests, queries.texts)
    forgotten = {ids.kind: ids.forgotten(marks) for ids in (documents, queries)}
    documents, queries = (ids.without(forgotten[ids.kind]) for ids in (documents, queries))
    if base.kind == "pairs":
        _refuse_shared(base, queries=queries, documents=documents)
    for old, name in queries.replaced().items():
        known_splits[queries.texts[name]] = known_splits[old]
    final = {ids.kind: ids.final() | forgotten[ids.kind] for ids in (documents, queries)}
    source = pairs.read(spec.folder, spec.columns, Beside(splits, final["document"], final["query"], known_splits))
    return Addition(without_forgotten(source, marks), {ids.kind: ids.shared() for ids in (documents, queries)})


def add_pairs(base: DatasetSpec, digests: Collection[str], *, queries: JoinedIds, documents: JoinedIds) -> tuple[dict[str, str], set[str]]:
    """Add the rows of a data set of pairs to the ids of a file that adds to it. Return the splits of its queries that have one of the
    `digests`, or an id of the file, by digest, and the splits that it has rows of.

    One pass over the data set: every file of an inbox needs it.
    """
    splits, matches = set[str](), dict[str, tuple[str, set[str]]]()
    for row in rows(base.folder, base.columns):
        splits.add(row.split)
        key = digest(row.query)
        if key in digests or row.query_id in queries.texts:
            matches.setdefault(key, (row.query, set()))[1].add(row.split)
        queries.add_known(row.query_id, key)
        for record_id, text in _documents(row) if documents.names else ():
            documents.add_known(record_id, text)
    shares = pairs.shares_of(splits)
    final_splits = {key: {shares.split(split, text) for split in row_splits} for key, (text, row_splits) in matches.items()}
    return {key: next(split for split in SPLITS if split in found) for key, found in final_splits.items()}, splits


def splits_of(source: Source, digests: Collection[str], texts: Mapping[str, str]) -> dict[str, str]:
    """The split of each judged query of a data set whose text has one of the `digests`, or whose id one of the new `texts`, by digest."""
    split_by_digest: dict[str, str] = {}
    for split in SPLITS:
        if split not in source.qrels:
            continue
        queries = source.queries.get(split) or source.queries[""]
        found = ((query.id, {digest(query.text), texts.get(query.id, "")}.intersection(digests)) for query in queries())
        ids = {name: keys for name, keys in found if keys}
        for qrel in source.qrels[split]() if ids else ():
            for key in ids.get(qrel.query, ()):
                split_by_digest.setdefault(key, split)
    return split_by_digest


def write(source: Source, folder: Path) -> None:
    """Write the pairs and their places to an empty folder. A split without judgments gets no file of qrels."""
    places: dict[str, list[int]] = {"corpus": [], "queries": []}
    noted = replace(
        source,
        documents=lambda: _noted(source.documents(), places["corpus"]),
        queries={"": lambda: _noted(source.queries[""](), places["queries"])},
    )
    written = write_beir(noted, folder)
    for split in SPLITS:
        if not written.judgments[split]:
            (folder / f"qrels/{split}.tsv").unlink()
    for name, lines in places.items():
        (folder / f"{name}.places").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _noted(records: Iterator[Record], places: list[int]) -> Iterator[Record]:
    for record in records:
        places.append(record.at.line)
        yield record


def _refuse_other_names(spec: DatasetSpec, columns: Columns, base: DatasetSpec) -> None:
    """UserError if the file has a column of NAMING and the base does not, or the reverse: equal texts would get two ids."""
    base_columns = columns_in(base.folder, base.columns)
    for role in NAMING if base_columns else ():
        in_file, in_base = (getattr(places, role) is not None for places in (columns, base_columns))
        if in_file != in_base and not (role == "title" and columns.id is not None):
            has, lacks = (spec.folder, base.folder) if in_file else (base.folder, spec.folder)
            raise Invalid(
                where=str(spec.folder),
                found=f"{'a' if in_file else 'no'} column {role}, {'unlike' if in_file else 'which is in'} the data set's file "
                f"{base.folder}",
                expected="it in both or in neither, so that equal texts are one record",
                remedy=f"add it to {lacks.name}, drop it from {has.name}, or exclude it from both: dataset.source=pairs:FILE#{role}=",
            )


def _refuse_shared(base: DatasetSpec, *, queries: JoinedIds, documents: JoinedIds) -> None:
    """UserError if the file corrects a text that is not one id's alone. Reads the data set again if the file corrects any."""
    for ids in (documents, queries):
        ids.refuse_shared(base.folder)
    old_documents, old_queries = documents.replaced(), queries.replaced()
    for row in rows(base.folder, base.columns) if old_documents or old_queries else ():
        named = [(documents, old_documents, *names) for names in _documents(row)]
        for ids, old, record_id, text in [*named, (queries, old_queries, row.query_id, digest(row.query))]:
            if old.get(text, record_id) != record_id:
                raise ids.refusal(old[text], f"{row.at} has the old text", record_id, base.folder)


def _documents(row: Row) -> list[tuple[str, str]]:
    """The ids and digests of a row's documents. Negatives have no id."""
    return [(row.document, digest(row.passage, row.title)), *(("", digest(text)) for text in row.negatives)]


def main(request_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    base = parse_dataset(request["base"]) if request["base"] else None
    addition, folder = read(parse_dataset(request["source"]), base, frozenset(request["marks"])), Path(request["folder"])
    write(addition.source, folder)
    write_json(folder / SHARED, addition.shared)


if __name__ == "__main__":
    with stage():
        main(sys.argv[1])
