"""Write a file of pairs as a BEIR folder that fits the data set it will be merged with. The process behind a file in an inbox
(flows.batches.pairs_files): `python -m tasks.prepare.commands.pairs_batch REQUEST`.

REQUEST is a JSON file {"source": SPEC of the file, "base": SPEC of the data set or empty, "marks": of forgotten records, "folder": FOLDER}.
A query whose text the data set has keeps the split that it has there. If the data set is a file of pairs too, equal texts get equal ids
(the data set's, if it has the text), and new queries are divided as if the rows were in that file. Memory then holds the ids in its
columns. `corpus.places` and `queries.places` in FOLDER have one line per record of the table: the row of the file that it came from.
"""

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tasks.core.errors import Invalid, UserError
from tasks.core.sources.datasets import DatasetSpec, parse_dataset
from tasks.core.sources.pairs import Columns
from tasks.core.stage.entry import stage
from tasks.core.tables.schemas import SPLITS
from tasks.core.text.plain import digest
from tasks.prepare.commands.beir_folder import write_beir
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.readers import kinds, pairs
from tasks.prepare.readers.lines import SHOWN
from tasks.prepare.readers.pairs import Beside, columns_in, rows
from tasks.prepare.source import At, Document, Query, Source

Record = TypeVar("Record", Document, Query)
NAMING = ("title", "id", "query_id")  # columns that decide which texts are one record


@dataclass(frozen=True)
class JoinedIds:
    """The ids of a file's rows in one column, and those of the data set that it adds to. A text has the id of its first row."""

    role: str
    rows: dict[str, tuple[At, str]] = field(default_factory=dict)  # of the file, by id: the first, and the digest of its text
    by_text: dict[str, str] = field(default_factory=dict)  # ids in the file, by digest
    negatives: set[str] = field(default_factory=set)  # digests of the file's negatives
    known: dict[str, str] = field(default_factory=dict)  # ids in the data set, by digest
    sharing: dict[str, set[str]] = field(default_factory=dict)  # by digest of a text whose id the file has: ids of the data set's rows

    def add(self, at: At, record_id: str, text: str) -> None:
        if record_id:
            self.rows.setdefault(record_id, (at, text))
            self.by_text.setdefault(text, record_id)

    def add_known(self, record_id: str, text: str) -> None:
        if record_id and self.known.setdefault(text, record_id) in self.rows:
            self.sharing.setdefault(text, set()).add(record_id)

    def of_known(self) -> dict[str, str]:
        """The ids in the data set of the file's texts, by digest."""
        return {text: self.known[text] for text in self.by_text.keys() | self.negatives if text in self.known}

    def refuse_shared(self, base: Path) -> None:
        """UserError if the file replaces a text that the data set has under other ids too: their rows would get the new text as well."""
        for text, ids in self.sharing.items():
            first = self.known[text]
            at, new = self.rows[first]
            others = sorted(name for name in ids if name not in self.rows or self.rows[name][1] != new)
            if others and new != text and new not in self.known and self.by_text[new] == first:
                raise Invalid(
                    where=str(at),
                    found=f"another text for {self.role} {first[:SHOWN]!r}, whose text rows with other ids of {base} have too, such as "
                    f"{others[0][:SHOWN]!r}",
                    expected="a text of that id alone, since those rows would get the new text as well",
                    remedy=f"change the row in {base.name} instead",
                )


def read(spec: DatasetSpec, base: DatasetSpec | None = None) -> Source:
    """Read a file of pairs as an addition to the data set `base`.

    UserError if it has no row, or if `base` is a file of pairs that names its records by different columns."""
    columns = columns_in(spec.folder, spec.columns)
    if columns is None:
        raise UserError(f"{spec.folder}: found no row, expected a query and the passage that answers it; add one")
    if base is None:
        return pairs.read(spec.folder, spec.columns)
    if base.kind == "pairs":
        _refuse_other_names(spec, columns, base)
    digests, documents, queries = set[str](), JoinedIds("id"), JoinedIds("query_id")
    for row in rows(spec.folder, spec.columns):
        digests.add(key := digest(row.query))
        documents.add(row.at, row.document, digest(row.passage, row.title))
        documents.negatives.update(map(digest, row.negatives))
        queries.add(row.at, row.query_id, key)
    if base.kind == "pairs":
        beside = beside_pairs(base, digests, documents, queries)
    else:
        beside = Beside(splits_of(kinds.read(base, needs_qrels=False), digests))
    return pairs.read(spec.folder, spec.columns, beside)


def beside_pairs(base: DatasetSpec, digests: Collection[str], documents: JoinedIds, queries: JoinedIds) -> Beside:
    """The splits and ids of a data set of pairs, for a file that adds to it: `digests` of its queries, and the ids in its columns.

    One pass over the data set: every file of an inbox needs it. UserError if the file replaces a text that other ids have too.
    """
    splits, matches, unnamed = set[str](), dict[str, tuple[str, set[str]]](), set[str]()
    for row in rows(base.folder, base.columns):
        splits.add(row.split)
        if (key := digest(row.query)) in digests:
            matches.setdefault(key, (row.query, set()))[1].add(row.split)
        queries.add_known(row.query_id, key)
        if row.document:
            documents.add_known(row.document, digest(row.passage, row.title))
            unnamed |= documents.by_text.keys() & {digest(text) for text in row.negatives}
    for ids in (documents, queries):
        ids.refuse_shared(base.folder)
    known_documents = {key: key for key in unnamed} | documents.of_known()  # a negative that is no passage has its digest for an id
    shares = pairs.shares_of(splits)
    final_splits = {key: {shares.split(split, text) for split in row_splits} for key, (text, row_splits) in matches.items()}
    return Beside(
        {key: next(split for split in SPLITS if split in found) for key, found in final_splits.items()},
        splits,
        known_documents,
        queries.of_known(),
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


def main(request_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    base = parse_dataset(request["base"]) if request["base"] else None
    write(without_forgotten(read(parse_dataset(request["source"]), base), frozenset(request["marks"])), Path(request["folder"]))


if __name__ == "__main__":
    with stage():
        main(sys.argv[1])
