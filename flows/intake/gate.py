"""What a batch is checked for before it is merged: form, ids, unknown documents, empty texts, leaks, duplicates.

Most of it nobody can overrule: prepare would refuse the merged data set. Only a share of duplicates (and a shift,
flows.intake.shift) is a matter of judgment: `retemper intake accept`. Ids and texts are compared by 64-bit hashes, 8 bytes each.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from flows.intake.records import Document, Files, Query, documents, files_of, headless, judgments, negatives, queries
from tasks.core.sources.datasets import beir_layout, csv_layout
from tasks.core.tables.id_sets import Ids, hashes
from tasks.core.tables.trec_ids import WHITE

BLOCK = 8192  # records that are hashed at a time
MOST = 100  # lines of a batch that are named; the others are counted
MALFORMED, REPEATED, UNKNOWN = "malformed lines", "ids or judgments said twice", "judgments of unknown documents or queries"
EMPTY, WHITE_IDS, LEAKS = "empty texts", "ids with white space", "training queries that are in dev or test too"
VOID, IRRELEVANT = "empty parts", "splits without a relevant document"

T = TypeVar("T")


class Settings(NamedTuple):
    """What stage prepare refuses in the merged data set. `whole`: a batch is a data set by itself; `qrels`: which needs judgments."""

    unknown: bool = True
    empty: bool = True
    leaks: bool = True
    white_ids: bool = True
    whole: bool = False
    qrels: bool = True


def settings_of(sections: Mapping[str, Any], *, whole: bool = False) -> Settings:
    """By the sections of params.yaml."""
    prepare = sections.get("prepare") or {}
    refused = Settings(*(prepare.get(name, "refuse") == "refuse" for name in ("unknown_documents", "empty_texts", "leaks", "ids")))
    return refused._replace(whole=whole, qrels=sections.get("queries") != "pseudo")


class Sample:
    """The texts with the smallest hashes of their ids: the same ones in whatever order they come."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[tuple[int, str]] = []

    def add(self, keys: Iterable[int], texts: Iterable[str]) -> None:
        for key, text in zip(keys, texts, strict=True):
            if len(self._held) < self._size:
                heapq.heappush(self._held, (-key, text))
            elif -key > self._held[0][0]:
                heapq.heapreplace(self._held, (-key, text))

    def texts(self) -> list[str]:
        """In the order of their hashes."""
        return [text for _, text in sorted(self._held, reverse=True)]


@dataclass
class Part:
    """Ids and texts of a data set or a batch. `query_texts` are parallel to `queries`."""

    documents: Ids = field(default_factory=Ids)
    texts: Ids = field(default_factory=Ids)
    queries: Ids = field(default_factory=Ids)
    query_texts: "array[int]" = field(default_factory=lambda: array("Q"))  # quoted: array is generic only from Python 3.12


class Known:
    """The data set and the batches that are in it: what a further batch is checked against. `size`: of the samples of texts."""

    def __init__(self, size: int) -> None:
        self.train, self.held_out = set[str](), set[str]()  # ids of judged queries
        self.relevant = set[str]()  # splits with a grade above 0
        self.train_texts, self.held_out_texts = set[int](), set[int]()
        self.sampled_documents, self.sampled_queries = Sample(size), Sample(size)
        self._parts: list[Part] = []

    def add(self, folder: Path) -> None:
        """Take up a folder. A malformed line is no part of it: whoever reads it next reports it."""
        files, part = files_of(folder), Part()
        for split in files.qrels:
            for one in judgments(files, split, _ignore):
                (self.train if split == "train" else self.held_out).add(one.query)
                if one.grade > 0:
                    self.relevant.add(split)
        for block in _blocks(documents(files, _ignore)):
            texts = [whole(document) for document in block]
            part.documents.add([document.id for document in block])
            part.texts.add(texts)
            self.sampled_documents.add(hashes([document.id for document in block]).tolist(), texts)
        for some in _blocks(queries(files, _ignore)):
            part.queries.add([query.id for query in some])
            part.query_texts.extend(text_hashes(some))
            self.sampled_queries.add(hashes([query.id for query in some]).tolist(), [query.text for query in some])
        self._parts.append(part)
        self.train_texts.update(self.texts_of(self.train).values())
        self.held_out_texts.update(self.texts_of(self.held_out).values())

    def has_documents(self, ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        return self._any(ids, [part.documents for part in self._parts])

    def has_texts(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        return self._any(texts, [part.texts for part in self._parts])

    def texts_of(self, queries: Iterable[str]) -> dict[str, int]:
        """Hashes of the texts of those of `queries` that are known, as `text_hashes` has them; the latest text of each."""
        names, found = list(queries), dict[str, int]()
        for part in self._parts:
            places = part.queries.ordinals(names)
            found |= {name: part.query_texts[place] for name, place in zip(names, places.tolist(), strict=True) if place >= 0}
        return found

    @staticmethod
    def _any(values: Sequence[str], sets: Sequence[Ids]) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(values), dtype=np.bool_)
        for one in sets:
            found |= one.contain(values)
        return found


class Findings:
    """Lines that are wrong, by what is wrong with them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self._first: dict[str, str] = {}

    def add(self, kind: str, line: str) -> None:
        self.counts[kind] += 1
        self._first.setdefault(kind, line)
        if len(self.lines) < MOST:
            self.lines.append(line)

    def reasons(self) -> list[str]:
        """One for each kind, with its first line."""
        return [f"{count:,} {kind}: {self._first[kind]}" for kind, count in self.counts.items()]


@dataclass(frozen=True)
class Checked:
    """A batch in figures, and what is wrong with it. `new`: documents whose ids the data set lacks; `duplicates`: those of the new ones
    that have title and text of another document; `texts` and `questions`: samples of its texts, for the test of shift."""

    documents: int
    new: int
    queries: int
    judgments: dict[str, int]
    duplicates: int
    findings: Findings
    texts: list[str]
    questions: list[str]


def check(folder: Path, known: Known, settings: Settings, *, size: int) -> Checked:
    """Read a batch and compare it with what is `known`; `size`: of the samples. UserError for files that contradict one another."""
    files, findings = files_of(folder), Findings()
    if settings.whole:
        (csv_layout if files.csv else beir_layout)(folder, needs_qrels=settings.qrels)
    texts, questions = Sample(size), Sample(size)
    malformed = _adder(findings, MALFORMED)
    for file in headless(files):
        findings.add(VOID, f"{file}: empty, expected a header and rows below it")

    own, own_texts, count, new, duplicates = set[int](), set[int](), 0, 0, 0
    for block in _blocks(documents(files, malformed)):
        ids, contents = [document.id for document in block], [whole(document) for document in block]
        keys, text_keys = hashes(ids).tolist(), hashes(contents).tolist()
        is_new, is_known_text = ~known.has_documents(ids), known.has_texts(contents)
        for place, document in enumerate(block):
            _check_id(document, findings, settings, repeated=keys[place] in own)
            if settings.empty and not (document.text.strip() or document.title.strip()):
                findings.add(EMPTY, f"{document.at}: document {document.id!r} has an empty title and text")
            if is_new[place]:
                new += 1
                duplicates += bool(is_known_text[place] or text_keys[place] in own_texts)
            own.add(keys[place])
            own_texts.add(text_keys[place])
        count += len(block)
        texts.add(keys, contents)

    asked: dict[str, int] = {}
    for some in _blocks(queries(files, malformed)):
        for query, text in zip(some, text_hashes(some), strict=True):
            _check_id(query, findings, settings, repeated=query.id in asked)
            if settings.empty and not query.text.strip():
                findings.add(EMPTY, f"{query.at}: query {query.id!r} has an empty text")
            asked[query.id] = text
        questions.add(hashes([query.id for query in some]).tolist(), [query.text for query in some])

    judged = {
        split: _check_judgments(files, split, known, own=own, asked=asked, findings=findings, settings=settings) for split in files.qrels
    }
    for listed in _blocks(negatives(files, malformed)):
        for one, document_known in zip(listed, _are_known([one.doc for one in listed], known, own), strict=True):
            if settings.unknown and not document_known:
                findings.add(UNKNOWN, f"{one.at}: document {one.doc!r} is neither in the data set nor in this batch")
    if settings.leaks:
        _check_leaks(judged, known, asked, findings=findings)
    sizes = {split: sum(lines.values()) for split, lines in judged.items()}
    if settings.whole and not count:
        findings.add(VOID, f"{files.documents}: found no document, expected at least one")
    if settings.whole and settings.qrels and not any(sizes.values()):
        findings.add(VOID, f"{folder / 'qrels'}: found no judgment, expected at least one")
    return Checked(count, new, len(asked), sizes, duplicates, findings, texts.texts(), questions.texts())


def may_come(reason: str) -> bool:
    """Whether a later batch may bring what a batch lacks."""
    return UNKNOWN in reason or IRRELEVANT in reason


def whole(document: Document) -> str:
    """Title and text: what a document is sampled and compared by."""
    return f"{document.title} {document.text}".strip() if document.title else document.text


def text_hashes(some: Sequence[Query]) -> list[int]:
    """Hashes of queries' texts without case, and with single blanks, as prepare finds leaks."""
    found: list[int] = hashes([" ".join(query.text.casefold().split()) for query in some]).tolist()
    return found


def _check_id(record: Document | Query, findings: Findings, settings: Settings, *, repeated: bool) -> None:
    if repeated:
        findings.add(REPEATED, f"{record.at}: id {record.id!r} is used twice in this batch")
    if settings.white_ids and WHITE.search(record.id):
        findings.add(WHITE_IDS, f"{record.at}: found id {record.id!r}, expected one without white space (or prepare.ids: escape)")


def _are_known(docs: Sequence[str], known: Known, own: set[int]) -> list[bool]:
    """Whether the data set or this batch (`own`, by hash) has each of these documents."""
    there: list[bool] = known.has_documents(docs).tolist()
    return [has or key in own for has, key in zip(there, hashes(docs).tolist(), strict=True)]


def _check_judgments(
    files: Files, split: str, known: Known, *, own: set[int], asked: Mapping[str, int], findings: Findings, settings: Settings
) -> Counter[str]:
    """How many judgments each query has in a split."""
    before: dict[tuple[str, str], tuple[int, float]] = {}
    found: Counter[str] = Counter()
    relevant = split in known.relevant
    for block in _blocks(judgments(files, split, _adder(findings, MALFORMED))):
        named = known.texts_of({one.query for one in block})
        for one, document_known in zip(block, _are_known([one.doc for one in block], known, own), strict=True):
            found[one.query] += 1
            query_known = one.query in asked or one.query in named
            relevant |= one.grade > 0 and document_known and query_known
            if settings.unknown and not document_known:
                findings.add(UNKNOWN, f"{one.at}: document {one.doc!r} is neither in the data set nor in this batch")
            if settings.unknown and not query_known:
                findings.add(UNKNOWN, f"{one.at}: query {one.query!r} is neither in the data set nor in this batch")
            grade, weight = before.setdefault((one.query, one.doc), (one.grade, one.weight))
            if grade != one.grade:
                findings.add(REPEATED, f"{one.at}: grade {one.grade} of {one.query} and {one.doc}, {grade} before; keep one")
            elif weight != one.weight:
                findings.add(REPEATED, f"{one.at}: weight {one.weight} of {one.query} and {one.doc}, {weight} before; keep one")
    if found and not relevant:
        line = (
            f"{files.qrels[split]}: found no grade above 0 of a known query and document, expected one in {split}, here or in the data set"
        )
        findings.add(IRRELEVANT, line)
    return found


def _check_leaks(judged: Mapping[str, Counter[str]], known: Known, asked: Mapping[str, int], *, findings: Findings) -> None:
    """Queries, by id or text, that would be in train and in dev or test once the batch is merged, and are not already."""
    train = set(judged.get("train", ())) | (asked.keys() & known.train)  # a known query may have another text here
    held_out = {query for split in judged if split != "train" for query in judged[split]} | (asked.keys() & known.held_out)
    before = known.texts_of(train | held_out)
    texts = before | {query: asked[query] for query in train | held_out if query in asked}
    by_id = (train & (held_out | known.held_out) | held_out & known.train) - (known.train & known.held_out)
    for query in sorted(by_id):
        findings.add(LEAKS, f"query {query!r} is judged in train and in dev or test")
    texts_held_out = known.held_out_texts | {texts[query] for query in held_out if query in texts}
    for own, same, others, ever, where in (
        (train, known.train, held_out | known.held_out, texts_held_out, "dev or test"),
        (held_out, known.held_out, known.train, known.train_texts, "train"),
    ):
        new = [query for query in sorted(own - by_id) if query not in same or texts.get(query) != before.get(query)]
        if any(texts.get(query) in ever for query in new):  # `ever` has texts that queries had before this batch or another, too
            now = {*(known.texts_of(others) | {query: asked[query] for query in others & asked.keys()}).values()}
            for query in new:
                if texts.get(query) in now:
                    findings.add(LEAKS, f"query {query!r} has the text of a query of {where}")


def _adder(findings: Findings, kind: str) -> Any:
    return lambda line: findings.add(kind, line)


def _blocks(records: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(records)
    while block := list(islice(iterator, BLOCK)):
        yield block


def _ignore(_line: str) -> None:
    pass
