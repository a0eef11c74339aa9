"""The documents, queries, and pairs of a conversion, in a database on disk, so that memory does not grow with the corpus.

A document's text is written to corpus.jsonl when it is first seen; the database keeps its digest, and its place in the input.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, TextIO

from flows.batches.records import shorten
from flows.converting.forms import Passage
from flows.converting.rows import refuse
from tasks.core.errors import UserError
from tasks.core.text.plain import plain
from tasks.core.trec.ids import WHITE

ENCODER = json.JSONEncoder(ensure_ascii=False)
DIGITS = 16  # of SHA-256 in hexadecimal, for the id of a text that has none
SCHEMA = """
CREATE TABLE documents (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, empty INTEGER NOT NULL, at BLOB NOT NULL);
CREATE TABLE queries (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, plain BLOB NOT NULL, more TEXT NOT NULL,
                      at BLOB NOT NULL);
CREATE TABLE judged (place INTEGER PRIMARY KEY, query INTEGER NOT NULL, split TEXT NOT NULL, doc INTEGER NOT NULL, grade INTEGER NOT NULL,
                     UNIQUE (query, split, doc));
CREATE TABLE negatives (place INTEGER PRIMARY KEY, query INTEGER NOT NULL, doc INTEGER NOT NULL, UNIQUE (query, doc));
"""
RELEVANT = "EXISTS (SELECT 1 FROM judged r WHERE r.query = {query} AND r.split = {split} AND r.grade > 0)"
POSITIVE = "EXISTS (SELECT 1 FROM judged r WHERE r.query = n.query AND r.split = 'train' AND r.doc = n.doc AND r.grade > 0)"
HELD_OUT = "SELECT o.plain FROM judged j JOIN queries o ON o.place = j.query WHERE j.split <> 'train' AND j.grade > 0"


class Store:
    """Documents, queries, and pairs, each once and in the order given. `corpus`: the file that documents are written to."""

    def __init__(self, database: sqlite3.Connection, corpus: TextIO) -> None:
        self._database, self._corpus = database, corpus
        self.documents = self.titled = self.white = 0  # documents written, those with a title, and ids with white space
        self.left_out: Counter[str] = Counter()

    def index_texts(self) -> None:
        """Call this before adding passages without ids, so that they are matched with documents of the same text."""
        self._database.execute("CREATE INDEX IF NOT EXISTS by_digest ON documents (digest)")

    def document(self, at: str, passage: Passage) -> int | None:
        """Add a document, if new; return its number, None if it has no text. UserError for an unknown id, or an id with two texts."""
        if passage.text is None:
            row = self._fetch_row("SELECT place, empty FROM documents WHERE id = ?", passage.id)
            if row is None:
                raise UserError(
                    f"{at}: document {shorten(passage.id)} is not in any corpus, expected its text; give the file that has it with --corpus"
                )
            return None if row[1] else int(row[0])
        raw = _encoded(at, f"{len(passage.title)} {passage.title}{passage.text}")
        digest, empty = blake2b(raw, digest_size=16).digest(), not f"{passage.title}{passage.text}".strip()
        name = passage.id
        if name is None:
            if row := self._fetch_row("SELECT place FROM documents WHERE digest = ? ORDER BY place", digest):
                return None if empty else int(row[0])
            name = text_id(passage.text)
        statement = "INSERT OR IGNORE INTO documents (id, digest, empty, at) VALUES (?, ?, ?, ?)"
        place = self._insert(statement, name, digest, empty, os.fsencode(at))
        if place is None:
            place, known_digest, known_at = self._fetch_row("SELECT place, digest, at FROM documents WHERE id = ?", name) or (
                None,
                b"",
                b"",
            )
            if known_digest != digest:
                refuse(f"{at}: document {shorten(name)} has another title or text at {os.fsdecode(known_at)}, expected one text per id")
        else:
            self.white += bool(WHITE.search(name))
            if not empty:
                self._corpus.write(ENCODER.encode({"_id": name, "title": passage.title, "text": passage.text}) + "\n")
                self.documents += 1
                self.titled += bool(passage.title.strip())
        return None if empty else place

    def query(self, at: str, name: str | None, text: str, *, more: Mapping[str, Any] | None = None) -> int | None:
        """Add a query, if new; return its number, None if it has no text. UserError for an id with two texts.

        Without a `name`, its id is made from its text. `more`: other keys of its line; the first ones given count.
        """
        raw = _encoded(at, plain(text))
        name = text_id(text) if name is None else name
        row = self._fetch_row("SELECT place, text, at FROM queries WHERE id = ?", name)
        if row is None:
            self.white += bool(WHITE.search(name))
            key = blake2b(raw, digest_size=16).digest() if raw else b""
            extra_keys = ENCODER.encode(more or {})
            _encoded(at, extra_keys)
            statement = "INSERT INTO queries (id, text, plain, more, at) VALUES (?, ?, ?, ?, ?)"
            place = self._insert(statement, name, text, key, extra_keys, os.fsencode(at))
        elif row[1] == text:
            place = int(row[0])
        else:
            refuse(f"{at}: query {shorten(name)} has another text at {os.fsdecode(row[2])}, expected one text per id")
        return place if raw else None

    def query_of(self, at: str, name: str) -> tuple[int | None, str]:
        """The number (None if it has no text) and text of a query by its id. Raises UserError if it is unknown."""
        row = self._fetch_row("SELECT place, text, plain FROM queries WHERE id = ?", name)
        if row is None:
            raise UserError(f"{at}: query {shorten(name)} is unknown, expected its text; give the file that has it with --queries")
        return int(row[0]) if row[2] else None, row[1]

    def judge(self, at: str, query: int, *, split: str, doc: int | None, grade: int) -> None:
        """Add a judgment. Raises UserError for two grades of one pair."""
        if doc is None:
            self.left_out["pairs with a document without text"] += 1
            return
        row = self._fetch_row("SELECT grade FROM judged WHERE query = ? AND split = ? AND doc = ?", query, split, doc)
        if row is None:
            self._insert("INSERT INTO judged (query, split, doc, grade) VALUES (?, ?, ?, ?)", query, split, doc, grade)
        elif row[0] != grade:
            refuse(f"{at}: found grade {grade} for a query and document that had grade {row[0]} before, expected one grade")

    def reject(self, query: int, doc: int | None) -> None:
        """Add a negative of a training query."""
        if doc is None:
            self.left_out["negatives without text"] += 1
        else:
            self._insert("INSERT OR IGNORE INTO negatives (query, doc) VALUES (?, ?)", query, doc)

    def queries(self) -> Iterator[tuple[str, str, str]]:
        """Id, text, and other keys (JSON) of every query with a relevant document."""
        return self._fetch_all(f"SELECT q.id, q.text, q.more FROM queries q WHERE {_relevant('q.place')} ORDER BY q.place")

    def judged(self, split: str) -> Iterator[tuple[str, str, int]]:
        """Query, document, and grade, for queries with a relevant document in that split."""
        return self._fetch_all(
            "SELECT q.id, d.id, j.grade FROM judged j CROSS JOIN queries q ON q.place = j.query CROSS JOIN documents d ON d.place = j.doc "
            f"WHERE j.split = ? AND {RELEVANT.format(query='j.query', split='j.split')} ORDER BY j.place",
            split,
        )

    def negatives(self) -> Iterator[tuple[str, str]]:
        """Query and document of negatives, for training queries with a relevant document, without documents relevant to the query."""
        return self._fetch_all(
            "SELECT q.id, d.id FROM negatives n CROSS JOIN queries q ON q.place = n.query CROSS JOIN documents d ON d.place = n.doc "
            f"WHERE {_relevant('n.query', 'train')} AND NOT {POSITIVE} ORDER BY n.place"
        )

    def count(self, split: str) -> int:
        """The number of queries with a relevant document in a split."""
        return self._number(f"SELECT count(*) FROM queries q WHERE {_relevant('q.place', split)}")

    def leaks(self) -> int:
        """The number of training queries that are also in dev or test, compared by plain text as in prepare."""
        return self._number(f"SELECT count(*) FROM queries q WHERE {_relevant('q.place', 'train')} AND q.plain IN ({HELD_OUT})")

    def count_left_out(self) -> dict[str, int]:
        """The number of records that were left out, by reason."""
        statements = {
            "queries without text": "SELECT count(*) FROM queries WHERE plain = x''",
            "queries without a relevant document": f"SELECT count(*) FROM queries q WHERE plain <> x'' AND NOT {_relevant('q.place')}",
            "negatives that are relevant to their query": f"SELECT count(*) FROM negatives n WHERE {POSITIVE}",
            "documents without title and text": "SELECT count(*) FROM documents WHERE empty",
        }
        counts = {**self.left_out, **{reason: self._number(query) for reason, query in statements.items()}}
        return {reason: counts[reason] for reason in sorted(counts) if counts[reason]}

    def _insert(self, statement: str, *values: object) -> int | None:
        """Insert a row; return its number, None if it exists already."""
        cursor = self._database.execute(statement, values)
        return cursor.lastrowid if cursor.rowcount else None

    def _fetch_row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(statement, values).fetchone()
        return row

    def _fetch_all(self, statement: str, *values: object) -> Iterator[Any]:
        yield from self._database.execute(statement, values)

    def _number(self, statement: str) -> int:
        return int(self._database.execute(statement).fetchone()[0])


@contextmanager
def new_store(folder: Path) -> Iterator[Store]:
    """A store that writes corpus.jsonl to `folder`; its database is there, too, until the store is closed."""
    database = folder / ".pairs.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; {SCHEMA} BEGIN")
        with (folder / "corpus.jsonl").open("w", encoding="utf-8", newline="\n") as corpus:
            yield Store(connection, corpus)
    database.unlink()


def text_id(text: str) -> str:
    """The id made for a text that has none."""
    return sha256(text.encode()).hexdigest()[:DIGITS]


def _relevant(query: str, split: str = "") -> str:
    splits = f"'{split}'" if split else "r.split"
    return RELEVANT.format(query=query, split=splits)


def _encoded(at: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        refuse(f"{at}: the text contains an unpaired surrogate (\\ud800 to \\udfff), expected valid Unicode text")
