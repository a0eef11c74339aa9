"""One file of queries, each with a passage that answers it, as a dataset. Its columns: tasks.core.sources.pairs.

Texts that differ only in case and blanks are one document, or one query, with the id and the words of the first row that has them. If the
file has no ids, an id is 16 hexadecimal digits of the SHA-256 of such a text. So a query may have several relevant documents, and a
document several queries. Negatives are documents, too.

Without a column split, every query is in train. If no row is in dev, a tenth of the training queries becomes dev, by a hash of their text;
likewise test. So a query keeps its split when the file grows, and equal queries are in one split. If the file adds to another data set
(`Beside`), a query that is there keeps its split there.

Memory holds 100 bytes per document. If the file has ids, it holds another 300 bytes per document and per query.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import Invalid, UserError
from tasks.core.sources.datasets import SPLIT_NAMES, SPLITS
from tasks.core.sources.pairs import ANCHORS, PASSAGES, Columns, columns_of, extension, pairs_file
from tasks.core.text.plain import SHARE, Shares, digest
from tasks.prepare.readers.csv_tables import read_cells
from tasks.prepare.readers.lines import SHOWN, read_objects
from tasks.prepare.readers.parquet import as_id, as_string, as_text, names_of, read_rows
from tasks.prepare.source import At, Document, Negative, Qrel, Query, Source

NEEDED = f"{' | '.join(ANCHORS)}, {' | '.join(PASSAGES)}"


class Row(NamedTuple):
    """A row. `document` and `query_id` are empty if the file has no such column. `split` is the column's value, or train without one."""

    at: At
    query: str
    passage: str
    title: str
    document: str
    query_id: str
    split: str
    negatives: Sequence[str]


@dataclass(frozen=True)
class Ids:
    """The ids in a column: `by_text` has the id by the `digest` of its text, `texts` the digest by the id."""

    role: str
    by_text: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, at: At, record_id: str, text: str) -> None:
        """Add an id. The first id of a text counts. UserError if it is also the id of another text."""
        first_id = self.by_text.setdefault(text, record_id)
        if self.texts.setdefault(first_id, text) != text:
            raise two_texts(at, self.role, first_id)


def two_texts(at: At, role: str, record_id: str) -> Invalid:
    """The error for an id of two texts."""
    return Invalid(
        where=str(at),
        found=f"{role} {record_id[:SHOWN]!r} for two different texts",
        expected="one text per id",
        remedy=f"if that column holds something else, exclude it: pairs:FILE#{role}=",
    )


@dataclass(frozen=True)
class Beside:
    """What a file of pairs takes from its rows as a whole, and from the data set that it adds to. `splits`: those that there are rows of.
    `documents`, `queries`: the ids of texts, by `digest`, where they are not the digest. `known_splits`: of the data set's queries."""

    splits: Collection[str]
    documents: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    known_splits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """How records get their ids and splits: the columns that the SPEC asks for, the file's ids by `digest`, the shares of the training
    queries that become dev and test, and the `known_splits` of queries, by digest."""

    column_spec: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    shares: Shares
    known_splits: Mapping[str, str]

    def document(self, text: str, title: str = "") -> str:
        key = digest(text, title)
        return self.documents.get(key, key)

    def query(self, row: Row) -> str:
        key = digest(row.query)
        return self.queries.get(key, key)

    def split(self, row: Row) -> str:
        """The split of a row. A row of dev or test stays there. A row of train goes to its query's known split, or by the query's hash."""
        known_split = self.known_splits.get(digest(row.query)) if self.known_splits and row.split == "train" else None
        return known_split or self.shares.split(row.split, row.query)


def read(file: Path, column_spec: str = "", beside: Beside | None = None) -> Source:
    """The pairs of `file` as a data set. Without `beside`, the file is read once for its ids and splits before this returns.

    `column_spec`: the columns that the SPEC names, if it does.
    """
    beside = beside or _by_itself(file, column_spec)
    names = Names(column_spec, beside.documents, beside.queries, shares_of(beside.splits), beside.known_splits)
    return Source(
        documents=partial(documents, file, names),
        queries={"": partial(queries, file, names)},
        qrels={split: partial(qrels, file, names, split) for split in SPLITS},
        negatives=partial(negatives, file, names),
    )


def _by_itself(file: Path, column_spec: str) -> Beside:
    """UserError if the file has an id for two texts."""
    splits, documents_of, queries_of = set[str](), Ids("id"), Ids("query_id")
    for row in rows(pairs_file(file), column_spec):
        splits.add(row.split)
        if row.document:
            documents_of.add(row.at, row.document, digest(row.passage, row.title))
        if row.query_id:
            queries_of.add(row.at, row.query_id, digest(row.query))
    return Beside(splits, documents_of.by_text, queries_of.by_text)


def shares_of(splits: Collection[str]) -> Shares:
    """The shares of the training queries that become dev and test: 0 for a split that is in `splits`, which the file has rows of."""
    return Shares(*(SHARE * (split not in splits) for split in ("dev", "test")))


def documents(file: Path, names: Names) -> Iterator[Document]:
    seen = set[bytes]()
    for row in rows(file, names.column_spec):
        for text, title in ((row.passage, row.title), *((text, "") for text in row.negatives)):
            hexdigest = digest(text, title)
            if (key := bytes.fromhex(hexdigest)) not in seen:
                seen.add(key)
                yield Document(row.at, names.documents.get(hexdigest, hexdigest), title, text)


def queries(file: Path, names: Names) -> Iterator[Query]:
    seen = set[bytes]()
    for row in rows(file, names.column_spec):
        if (key := bytes.fromhex(digest(row.query))) not in seen:
            seen.add(key)
            yield Query(row.at, names.query(row), row.query, [])


def qrels(file: Path, names: Names, split: str) -> Iterator[Qrel]:
    for row in rows(file, names.column_spec):
        if names.split(row) == split:
            yield Qrel(row.at, names.query(row), names.document(row.passage, row.title), 1)


def negatives(file: Path, names: Names) -> Iterator[Negative]:
    for row in rows(file, names.column_spec):
        for text in row.negatives:
            yield Negative(row.at, names.query(row), names.document(text))


def rows(file: Path, column_spec: str) -> Iterator[Row]:
    """Every row. UserError, with the place, for a missing column or a cell that cannot be read."""
    for at, columns, cells in _cells(file, column_spec):

        def cell(place: int | None, values: Sequence[Any] = cells) -> Any:
            return None if place is None else values[place]

        title, document, query_id = cell(columns.title), cell(columns.id), cell(columns.query_id)
        yield Row(
            at,
            as_text(at, cell(columns.query)),
            as_text(at, cell(columns.passage)),
            "" if title is None else as_string(at, "title", title),
            "" if document is None else as_id(at, document),
            "" if query_id is None else as_id(at, query_id),
            "train" if columns.split is None else _split(at, cell(columns.split)),
            [as_text(at, cells[place]) for place in columns.negatives if cells[place]],
        )


def columns_in(file: Path, column_spec: str) -> Columns | None:
    """The places of the columns in `file`, or None if it has no rows."""
    return next((columns for _, columns, _ in _cells(pairs_file(file), column_spec)), None)


def _cells(file: Path, column_spec: str) -> Iterator[tuple[At, Columns, Sequence[Any]]]:
    """Every row, with the places of its columns. Of Parquet, only the columns of a role are read."""
    if extension(file) == ".parquet":
        names = names_of(file)
        wanted = [names[place] for place in _places(columns_of(str(file), names, column_spec))]
        columns = columns_of(str(file), wanted, column_spec)
        for at, values in read_rows((file,), [(name,) for name in wanted], named_only=True):
            yield at, columns, values
    elif extension(file) in (".csv", ".tsv"):
        columns = None
        for at, header, cells in read_cells(file, NEEDED):
            columns = columns or columns_of(str(at), header, column_spec)
            if cells is not None:
                yield at, columns, cells
    else:
        yield from _object_cells(file, column_spec)


def _object_cells(file: Path, column_spec: str) -> Iterator[tuple[At, Columns, Sequence[Any]]]:
    """Every row of JSON lines. The keys of the first line are the columns. UserError for a later key that would be one, too."""
    names, columns, known_keys = list[str](), None, set[str]()
    for at, record in read_objects(file, NEEDED):
        if columns is None:
            names, columns = list(record), columns_of(str(at), list(record), column_spec)
        if not record.keys() <= known_keys:
            _refuse_new_columns(at, columns, names=[*names, *(name for name in record if name not in names)], column_spec=column_spec)
            known_keys |= record.keys()
        yield at, columns, [record.get(name) for name in names]
    if columns is None:
        raise UserError(f"{file}: found no line, expected JSON lines with {NEEDED}")


def _refuse_new_columns(at: At, columns: Columns, *, names: Sequence[str], column_spec: str) -> None:
    """UserError if `names`, the keys of the first line and then later ones, have columns that the first line lacks."""
    later = columns_of(str(at), names, column_spec)
    if new := [place for place in _places(later) if place not in _places(columns)]:
        value = "train" if new[0] == later.split else "null"
        raise Invalid(
            where=str(at),
            found=f"the key {names[new[0]][:SHOWN]!r}",
            expected="the keys of the first line",
            remedy=f"write it in the first line too ({value} if that has none)",
        )


def _places(columns: Columns) -> list[int]:
    """The places of all columns, in order; a column that has two roles is one."""
    optional = (place for place in (columns.title, columns.id, columns.query_id, columns.split) if place is not None)
    return sorted({columns.query, columns.passage, *optional, *columns.negatives})


def _split(at: At, value: object) -> str:
    name = str(value or "").strip()
    if (split := SPLIT_NAMES.get(name.lower())) is None:
        raise UserError(f"{at}: found split {name[:SHOWN]!r}, expected train, dev (or validation), or test; fix that row")
    return split
