"""Write a file of pairs as a BEIR folder that fits the data set it will be merged with. The process behind a file in an inbox
(flows.batches.pairs_files): `python -m tasks.prepare.commands.pairs_batch REQUEST`.

REQUEST is a JSON file {"source": SPEC of the file, "base": SPEC of the data set or empty, "marks": of forgotten records, "folder": FOLDER,
"replaced": {"document", "query": ids of the data set that other batches give another text}}.
A query whose text the data set has keeps the split that it has there. If the data set is a file of pairs too, equal texts get equal ids
(the data set's, if it has the text), and new queries are divided as if the rows were in that file. Memory then holds the ids in its
columns. `corpus.places` and `queries.places` in FOLDER have one line per record of the table: the row of the file that it came from.
taken.json has the ids of the data set that texts of the file got in place of their own: {"document", "query": {ID: digest of the text}}.
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
from tasks.core.sources.forgotten import Kind, mark
from tasks.core.sources.pairs import Columns
from tasks.core.stage.entry import stage
from tasks.core.tables.schemas import SPLITS
from tasks.core.text.plain import digest
from tasks.prepare.commands.beir_folder import write_beir
from tasks.prepare.commands.joined_ids import JoinedIds
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.readers import kinds, pairs
from tasks.prepare.readers.lines import SHOWN
from tasks.prepare.readers.pairs import Beside, Ids, columns_in, rows
from tasks.prepare.source import Document, Query, Source

Record = TypeVar("Record", Document, Query)
TAKEN = "taken.json"
NAMING = ("title", "id", "query_id")  # columns that decide which texts are one record


@dataclass(frozen=True)
class Addition:
    """A file of pairs as an addition to a data set. `taken`: as in taken.json."""

    source: Source
    taken: dict[Kind, dict[str, str]] = field(default_factory=dict)


def read(spec: DatasetSpec, base: DatasetSpec | None = None, replaced: Mapping[Kind, Collection[str]] | None = None) -> Addition:
    """Read a file of pairs as an addition to the data set `base`. `replaced`: ids in it that other batches give another text.

    UserError if it has no row, or if `base` is a file of pairs that names its records by different columns."""
    columns = columns_in(spec.folder, spec.columns)
    if columns is None:
        raise UserError(f"{spec.folder}: found no row, expected a query and the passage that answers it; add one")
    if base is None:
        return Addition(pairs.read(spec.folder, spec.columns))
    if base.kind == "pairs":
        _refuse_other_names(spec, columns, base)
    digests, replaced = set[str](), replaced or {}
    queries = JoinedIds(Ids("query_id"), replaced.get("query", ()))
    documents = JoinedIds(Ids("id"), replaced.get("document", ()))
    for row in rows(spec.folder, spec.columns):
        digests.add(key := digest(row.query))
        if columns.id is not None:
            documents.add(row.at, row.document, digest(row.passage, row.title))
            documents.unnamed.update(map(digest, row.negatives))
        if columns.query_id is not None:
            queries.add(row.at, row.query_id, key)
    if base.kind == "pairs":
        beside = beside_pairs(base, digests, queries=queries, documents=documents)
        _refuse_moved(spec, base, (queries, documents))
    else:
        beside = Beside(splits_of(kinds.read(base, needs_qrels=False), digests))
    return Addition(pairs.read(spec.folder, spec.columns, beside), {"document": documents.foreign(), "query": queries.foreign()})


def beside_pairs(base: DatasetSpec, digests: Collection[str], *, queries: JoinedIds, documents: JoinedIds) -> Beside:
    """The splits and ids of a data set of pairs, for a file that adds to it: `digests` of its queries, and the ids in its columns.

    One pass over the data set: every file of an inbox needs it. UserError if the file replaces a text that other ids have too.
    """
    splits, matches = set[str](), dict[str, tuple[str, set[str]]]()
    for row in rows(base.folder, base.columns):
        splits.add(row.split)
        if (key := digest(row.query)) in digests:
            matches.setdefault(key, (row.query, set()))[1].add(row.split)
        queries.add_known(row.query_id, key)
        if documents.own.by_text or documents.unnamed:
            documents.add_known(row.document, digest(row.passage, row.title))
            for text in row.negatives:
                documents.add_known("", digest(text))
    for ids in (documents, queries):
        ids.refuse_shared(base.folder)
    shares = pairs.shares_of(splits)
    final_splits = {key: {shares.split(split, text) for split in row_splits} for key, (text, row_splits) in matches.items()}
    return Beside(
        {key: next(split for split in SPLITS if split in found) for key, found in final_splits.items()},
        splits,
        documents.final(),
        queries.final(),
    )


def splits_of(source: Source, digests: Collection[str]) -> dict[str, str]:
    """The split of each judged query of a data set whose text has one of the `digests`, by digest."""
    split_by_digest: dict[str, str] = {}
    for split in SPLITS:
        if split not in source.qrels:
            continue
        queries = source.queries.get(split) or source.queries[""]
        ids = {query.id: key for query in queries() if (key := digest(query.text)) in digests}
        for qrel in source.qrels[split]() if ids else ():
            if qrel.query in ids:
                split_by_digest.setdefault(ids[qrel.query], split)
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


def _refuse_moved(spec: DatasetSpec, base: DatasetSpec, ids: tuple[JoinedIds, JoinedIds]) -> None:
    """UserError if the file has a query with an answer that the data set has, but under other ids, and theirs for another pair.

    So it is in an export whose ids number its rows, after a row was added in front. Reads both again if the file replaces a text."""
    replaced = [one.new_texts() for one in ids]
    if not any(replaced):
        return
    texts = [{*new, *new.values()} for new in replaced]
    pairs_of_file = ((row.at, (digest(row.query), digest(row.passage, row.title))) for row in rows(spec.folder, spec.columns))
    places = {pair: at for at, pair in pairs_of_file if any(text in some for text, some in zip(pair, texts, strict=True))}
    for row in rows(base.folder, base.columns):
        pair = digest(row.query), digest(row.passage, row.title)
        if pair in places and tuple(new.get(text, text) for text, new in zip(pair, replaced, strict=True)) not in places:
            role, name = next((one.own.role, one.known[text]) for one, text, new in zip(ids, pair, replaced, strict=True) if text in new)
            raise Invalid(
                where=str(places[pair]),
                found=f"a text that {base.folder} has under {role} {name[:SHOWN]!r}, which is another text in this file",
                expected="ids that stay with their texts",
                remedy=f"correct that id, or if the column numbers rows, exclude it from both files: dataset.source=pairs:FILE#{role}=",
            )


def main(request_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    base = parse_dataset(request["base"]) if request["base"] else None
    addition, marks = read(parse_dataset(request["source"]), base, request["replaced"]), frozenset(request["marks"])
    folder = Path(request["folder"])
    write(without_forgotten(addition.source, marks), folder)
    taken = {kind: {name: text for name, text in ids.items() if mark(kind, name) not in marks} for kind, ids in addition.taken.items()}
    write_json(folder / TAKEN, taken)


if __name__ == "__main__":
    with stage():
        main(sys.argv[1])
