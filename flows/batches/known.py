"""The data set and the batches merged with it, in the order of the merge: ids and texts by 64-bit hashes, 8 bytes each."""

import heapq
from array import array
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flows.batches import records
from flows.batches.records import Document, Files, Form, Judged, Negative, Query, Wrong, files_of
from tasks.core.sources.forgotten import mark
from tasks.core.tables.id_sets import Hashes, Ids, hashes
from tasks.core.text.plain import plain

BLOCK = 8192  # records that are hashed at a time
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd
T = TypeVar("T")
Mask = npt.NDArray[np.bool_]


class Sample:
    """The texts whose ids have the smallest hashes: the same sample in whatever order texts are added."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, str]] = []

    def add(self, keys: Iterable[int], texts: Iterable[str]) -> None:
        for key, text in zip(keys, texts, strict=True):
            if len(self._heap) < self._size:
                heapq.heappush(self._heap, (-key, text))
            elif -key > self._heap[0][0]:
                heapq.heapreplace(self._heap, (-key, text))

    def texts(self) -> list[str]:
        """The sampled texts, in the order of their hashes."""
        return [text for _, text in sorted(self._heap, reverse=True)]


class Seen:
    """The hashes of several blocks, at 8 bytes each."""

    def __init__(self) -> None:
        self._runs: list[Hashes] = []  # each is sorted, and more than twice as long as the next

    def add(self, keys: Hashes) -> Mask:
        """Add a block. For each of its hashes, return whether it was there before, or earlier in the block."""
        run, first = np.unique(keys, return_index=True)
        seen = np.ones(len(keys), dtype=np.bool_)
        seen[first] = False
        for other in self._runs:
            seen |= other[np.minimum(np.searchsorted(other, keys), len(other) - 1)] == keys
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        return seen


class Reader:
    """The records of a batch, without those that the project has forgotten (`marks`), which prepare never sees."""

    def __init__(self, files: Files, marks: Collection[str]) -> None:
        self._files, self._marks = files, marks

    def documents(self, wrong: Wrong) -> Iterator[Document]:
        return (document for document in records.documents(self._files, wrong) if self._has(document=document.id))

    def queries(self, wrong: Wrong) -> Iterator[Query]:
        return (query for query in records.queries(self._files, wrong) if self._has(query=query.id))

    def judgments(self, split: str, wrong: Wrong) -> Iterator[Judged]:
        return (
            judgment for judgment in records.judgments(self._files, split, wrong) if self._has(query=judgment.query, document=judgment.doc)
        )

    def negatives(self, wrong: Wrong) -> Iterator[Negative]:
        return (negative for negative in records.negatives(self._files, wrong) if self._has(query=negative.query, document=negative.doc))

    def _has(self, **names: str) -> bool:
        return not self._marks or not any(mark(kind, name) in self._marks for kind, name in names.items())


@dataclass(frozen=True)
class Rows:
    """Judgments of a split: hashes of their queries and documents, and whether the grade is above 0."""

    queries: Hashes
    docs: Hashes
    relevant: Mask

    @property
    def pairs(self) -> Hashes:
        """A hash of each judgment's query and document."""
        return pair_hashes(self.queries, self.docs)


@dataclass
class Part:
    """Ids and texts of a data set or a batch. `blank`: documents without title and text; `query_texts` and `answered` (whether a query has
    an answer) are parallel to `queries`."""

    documents: Ids = field(default_factory=Ids)
    blank: set[int] = field(default_factory=set)
    texts: Ids = field(default_factory=Ids)
    queries: Ids = field(default_factory=Ids)
    query_texts: "array[int]" = field(default_factory=lambda: array("Q"))  # quoted: array is generic only from Python 3.12
    answered: bytearray = field(default_factory=bytearray)
    judged: dict[str, list[Rows]] = field(default_factory=dict)  # by split, a block of lines each

    def add_documents(self, block: Sequence[Document]) -> tuple[Hashes, Hashes, list[str]]:
        """Add a block; return the hash of each id, and each document's title and text as one string: its hash, and itself."""
        keys, texts = hashes([document.id for document in block]), [full_text(document.title, document.text) for document in block]
        text_keys = hashes(texts)
        self.documents.extend(keys)
        self.texts.extend(text_keys)
        for key, document in zip(keys.tolist(), block, strict=True):
            (self.blank.add if is_blank(document) else self.blank.discard)(key)
        return keys, text_keys, texts

    def add_queries(self, block: Sequence[Query]) -> Hashes:
        """Add a block; return the hash of each id."""
        keys = hashes([query.id for query in block])
        self.queries.extend(keys)
        self.query_texts.frombytes(hashes([plain(query.text) for query in block]).tobytes())
        self.answered.extend(query.answered for query in block)
        return keys

    def add_judgments(self, split: str, block: Sequence[Judged]) -> None:
        relevant = np.array([judgment.grade > 0 for judgment in block], dtype=np.bool_)
        rows = Rows(hashes([judgment.query for judgment in block]), hashes([judgment.doc for judgment in block]), relevant)
        self.judged.setdefault(split, []).append(rows)


class Known:
    """The data set and the batches merged with it, against which another batch is checked.

    `size`: of the samples of texts; `marks`: of records that the project has forgotten (tasks.core.sources.forgotten).
    """

    def __init__(self, size: int, marks: Collection[str] = ()) -> None:
        self.marks = marks
        self.sampled_documents, self.sampled_queries = Sample(size), Sample(size)
        self.files: list[Files] = []
        self.batches: list[Path] = []  # their folders
        self._parts: list[tuple[tuple[bool, str], Part]] = []  # (batch or not, name), ascending: the order of the merge

    def add(self, folder: Path, *, batch: bool = True, form: Form | None = None) -> None:
        """Add a folder: the data set itself, of this `form`, or a `batch`. Malformed lines are skipped; the next reader reports them."""
        files, part = files_of(folder, form), Part()
        reader = Reader(files, self.marks)
        for split in files.qrels:
            for lines in blocks(reader.judgments(split, ignore_line)):
                part.add_judgments(split, lines)
        for block in blocks(reader.documents(ignore_line)):
            keys, _, texts = part.add_documents(block)
            self.sampled_documents.add(keys.tolist(), texts)
        for query_block in blocks(reader.queries(ignore_line)):
            self.sampled_queries.add(part.add_queries(query_block).tolist(), [query.text for query in query_block])
        self.files.append(files)
        self.batches += [folder] if batch else []
        insort(self._parts, ((batch, folder.name), part), key=itemgetter(0))

    def parts(self, name: str = "", other: Part | None = None) -> list[Part]:
        """All parts in the order of the merge, with `other`, a batch called `name`, among them."""
        added = [((True, name), other)] if other else []
        return [part for _, part in sorted([*self._parts, *added], key=itemgetter(0))]

    def has_documents(self, keys: Hashes) -> Mask:
        return _any(keys, [part.documents for _, part in self._parts])

    def has_texts(self, keys: Hashes) -> Mask:
        return _any(keys, [part.texts for _, part in self._parts])

    def has_queries(self, keys: Hashes) -> Mask:
        return _any(keys, [part.queries for _, part in self._parts])


def query_names(read: Iterable[Files], keys: Collection[int]) -> dict[int, str]:
    """Ids of queries by their hashes, read from the files again."""
    names: dict[int, str] = {}
    for files in read if keys else ():
        for block in blocks(records.queries(files, ignore_line)):
            ids = [query.id for query in block]
            names |= {key: name for key, name in zip(hashes(ids).tolist(), ids, strict=True) if key in keys}
    return names


def pair_hashes(queries: Hashes, docs: Hashes) -> Hashes:
    """A hash for each pair of a query and a document, given by their hashes."""
    return queries * MIX + docs


def full_text(title: str, text: str) -> str:
    """Title and text as one string, by which a document is sampled and compared."""
    return f"{title} {text}".strip() if title else text


def is_blank(record: Document | Query) -> bool:
    """Whether prepare finds the record empty."""
    return not (record.text.strip() or (isinstance(record, Document) and record.title.strip()))


def blocks(lines: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(lines)
    while block := list(islice(iterator, BLOCK)):
        yield block


def _any(keys: Hashes, sets: Sequence[Ids]) -> Mask:
    mask = np.zeros(len(keys), dtype=np.bool_)
    for ids in sets:
        mask |= ids.have(keys)
    return mask


def ignore_line(_line: str) -> None:
    """Do nothing with a malformed line."""
