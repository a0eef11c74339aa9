"""The checks of a batch before it is merged: form, ids, unknown documents, empty texts, leaks, duplicates.

Most findings cannot be overruled, because prepare would refuse the merged data set. Only a large share of duplicates (and a shift,
flows.intake.shift) is a matter of judgment: `retemper intake accept`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.intake.foreseen import Foreseen, Settings, foresee, judged_queries
from flows.intake.known import Known, Part, Reader, Sample, blocks, is_blank
from flows.intake.records import Document, Files, Judged, Query, files_of, headless
from flows.intake.settings import Gate
from tasks.core.sources.datasets import beir_layout, csv_layout
from tasks.core.tables.id_sets import hashes
from tasks.core.tables.trec_ids import WHITE
from tasks.core.text.plain import named

VERSION = 3  # of the checks: raise it with each new reason to keep a batch out, so that accepted batches are checked again
MOST = 100  # lines of a batch that are named; the others are counted
MALFORMED, REPEATED, UNKNOWN = "malformed lines", "ids or judgments said twice", "judgments of unknown documents or queries"
EMPTY, WHITE_IDS, LEAKS = "empty texts", "ids with white space", "training queries that are in dev or test too"
VOID, IRRELEVANT = "empty parts", "splits without a relevant document"
ONE = {
    MALFORMED: "malformed line",
    REPEATED: "id or judgment said twice",
    UNKNOWN: "judgment of an unknown document or query",
    EMPTY: "empty text",
    WHITE_IDS: "id with white space",
    LEAKS: "training query that is in dev or test too",
    VOID: "empty part",
    IRRELEVANT: "split without a relevant document",
}


class Findings:
    """Lines that are wrong, by the kind of mistake."""

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
        """One reason per kind of mistake, with its first line."""
        return [f"{count:,} {ONE[kind] if count == 1 else kind}: {self._first[kind]}" for kind, count in self.counts.items()]


@dataclass(frozen=True)
class Checked:
    """A batch in figures, and what is wrong with it. `new`: documents whose ids the data set lacks; `duplicates`: new documents with the
    title and text of another document; `texts` and `questions`: samples of documents and queries, for the test of shift."""

    documents: int
    new: int
    queries: int
    judgments: dict[str, int]
    negatives: int
    duplicates: int
    findings: Findings
    texts: list[str]
    questions: list[str]


def check(folder: Path, known: Known, settings: Settings, *, size: int) -> Checked:
    """Read a batch and check it against what is `known`; `size`: of the samples. Raises UserError for files that contradict each other."""
    files, findings, part = files_of(folder), Findings(), Part()
    if settings.whole:
        (csv_layout if files.csv else beir_layout)(folder, needs_qrels=settings.qrels)
    reader, texts, questions = Reader(files, known.marks), Sample(size), Sample(size)
    malformed = _adder(findings, MALFORMED)
    for file in headless(files):
        findings.add(VOID, f"{file}: empty, expected a header and rows below it")

    own, own_texts, new, duplicates = set[int](), set[int](), 0, 0
    for block in blocks(reader.documents(malformed)):
        keys, contents = part.add_documents(block)
        text_keys = hashes(contents).tolist()
        is_new, is_known_text = ~known.has_documents([document.id for document in block]), known.has_texts(contents)
        for place, document in enumerate(block):
            _check_id(document, findings, settings, repeated=keys[place] in own)
            if settings.empty and is_blank(document):
                findings.add(EMPTY, f"{document.at}: {named('document', document.id, repr(document.id))} has an empty title and text")
            if is_new[place]:
                new += 1
                duplicates += bool(is_known_text[place] or text_keys[place] in own_texts)
            own.add(keys[place])
            own_texts.add(text_keys[place])
        texts.add(keys, contents)

    asked: dict[int, str] = {}  # ids by their hashes
    for some in blocks(reader.queries(malformed)):
        keys = part.add_queries(some)
        for query, key in zip(some, keys, strict=True):
            _check_id(query, findings, settings, repeated=key in asked)
            if settings.empty and is_blank(query):
                findings.add(EMPTY, f"{query.at}: {named('query', query.id, repr(query.id))} has an empty text")
            asked[key] = query.id
        questions.add(keys, [query.text for query in some])

    for split in files.qrels:
        before: dict[tuple[str, str], Judged] = {}
        for judged in blocks(reader.judgments(split, malformed)):
            part.add_judgments(split, judged)
            _check_judged(judged, known, findings, own=own, asked=asked, before=before, settings=settings)
    sizes = {split: sum(len(rows.docs) for rows in part.judged.get(split, ())) for split in files.qrels}
    train, negatives = judged_queries(known.parts(folder.name, part), "train"), 0  # prepare reads the negatives of no others
    for listed in blocks(reader.negatives(malformed)):
        negatives += len(listed)
        there, read = _are_known([one.doc for one in listed], known, own), np.isin(hashes([one.query for one in listed]), train)
        for one, document_known, is_read in zip(listed, there, read.tolist(), strict=True):
            if settings.unknown and settings.negatives and is_read and not document_known:
                findings.add(UNKNOWN, f"{one.at}: document {one.doc!r} is neither in the data set nor in this batch")
    now, then = foresee(known.parts(), settings), foresee(known.parts(folder.name, part), settings)
    if settings.leaks == "refuse":
        _check_leaks(now, then, findings, part=part, known=known, asked=asked)
    _check_splits(now, then, findings, files=files, folder=folder)
    if not then.texts and (now.texts or settings.whole):
        findings.add(VOID, f"{files.documents}: would leave no document with a title or a text, expected at least one")
    if settings.whole and settings.qrels:
        needed = {"dev": "to compare a new model with the champion"} | ({"train": "to train on"} if settings.train else {})
        for split, use in needed.items():
            if not sizes.get(split):
                findings.add(VOID, f"{folder / 'qrels'}: found no judgment of {split}, expected some {use}")
    return Checked(len(part.documents), new, len(asked), sizes, negatives, duplicates, findings, texts.texts(), questions.texts())


def may_come(reason: str) -> bool:
    """Whether a later batch may add what `reason` says is missing."""
    return any(words in reason for kind in (UNKNOWN, IRRELEVANT) for words in (kind, ONE[kind]))


def duplicates(checked: Checked, rules: Gate) -> list[str]:
    """The share of new documents that are copies, where it is too large."""
    share = checked.duplicates / max(checked.new, 1)
    if rules.duplicates is None or checked.new < rules.least or share <= rules.duplicates:
        return []
    return [
        f"{checked.duplicates:,} of {checked.new:,} new documents have the text of another one, expected at most {rules.duplicates:.0%}"
    ]


def _check_id(record: Document | Query, findings: Findings, settings: Settings, *, repeated: bool) -> None:
    if repeated:
        findings.add(REPEATED, f"{record.at}: id {record.id!r} is used twice in this batch")
    if settings.white_ids and WHITE.search(record.id):
        findings.add(WHITE_IDS, f"{record.at}: found id {record.id!r}, expected one without white space (or prepare.ids: escape)")


def _are_known(docs: Sequence[str], known: Known, own: set[int]) -> list[bool]:
    """Whether the data set or this batch (`own`, by hash) has each of these documents."""
    there: list[bool] = known.has_documents(docs).tolist()
    return [has or key in own for has, key in zip(there, hashes(docs).tolist(), strict=True)]


def _check_judged(
    judged: Sequence[Judged],
    known: Known,
    findings: Findings,
    *,
    own: set[int],
    asked: Collection[int],
    before: dict[tuple[str, str], Judged],
    settings: Settings,
) -> None:
    """Check a block of judgments. `own` and `asked`: documents and queries of the batch, by hash; `before`: judgments of earlier lines."""
    queries, documents = [one.query for one in judged], _are_known([one.doc for one in judged], known, own)
    keys, there = hashes(queries).tolist(), known.has_queries(queries).tolist()
    for one, has_document, key, has_query in zip(judged, documents, keys, there, strict=True):
        if settings.unknown and not has_document:
            findings.add(UNKNOWN, f"{one.at}: document {one.doc!r} is neither in the data set nor in this batch")
        if settings.unknown and not (has_query or key in asked):
            findings.add(UNKNOWN, f"{one.at}: query {one.query!r} is neither in the data set nor in this batch")
        other = before.setdefault((one.query, one.doc), one)
        if other.grade != one.grade:
            findings.add(REPEATED, f"{one.at}: grade {one.grade} of {one.query} and {one.doc}, {other.grade} before; keep one")
        elif other.weight != one.weight:
            findings.add(REPEATED, f"{one.at}: weight {one.weight} of {one.query} and {one.doc}, {other.weight} before; keep one")


def _check_leaks(before: Foreseen, after: Foreseen, findings: Findings, *, part: Part, known: Known, asked: Mapping[int, str]) -> None:
    """Find training queries that would be in dev or test too once the batch, `part`, is merged, and are not yet."""
    new = {query: text for query, text in after.leaked.items() if query not in before.leaked}
    if not new:
        return
    held_out: dict[int, list[int]] = {}
    for query, text in after.held_out:
        held_out.setdefault(text, []).append(query)
    ours = {*asked, *(key for rows in part.judged.values() for block in rows for key in block.queries.tolist())}
    lines: dict[int, str] = {}  # what is wrong with a query
    for query, text in new.items():
        other = next((one for one in held_out.get(text, ()) if one in ours), None)
        if query in after.by_id:
            lines[query] = "is judged in train and in dev or test"
        elif query in ours or other is None:
            lines[query] = "has the text of a query of dev or test"
        else:
            lines[other] = "has the text of a query of train"
    names = {**known.query_names(lines.keys() - asked.keys()), **asked}
    for name, line in sorted((names[query], line) for query, line in lines.items()):
        findings.add(LEAKS, f"query {name!r} {line}")


def _check_splits(before: Foreseen, after: Foreseen, findings: Findings, *, files: Files, folder: Path) -> None:
    """Find splits without a relevant document once the batch is merged, if they have one now or the batch judges them."""
    for split, dropped in after.bare.items():
        if split not in before.bare or split in files.qrels:
            wrong = f"prepare drops all that are relevant ({dropped:,})" if dropped else "every grade is 0 or less"
            line = f"{files.qrels.get(split, folder)}: would leave split {split} without a relevant document, {wrong}"
            findings.add(IRRELEVANT, f"{line}; expected a grade above 0, here or in the data set")


def _adder(findings: Findings, kind: str) -> Any:
    return lambda line: findings.add(kind, line)
