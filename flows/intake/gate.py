"""The checks of a batch before it is merged: form, ids, unknown documents, empty texts, leaks, missing answers, duplicates.

Most findings cannot be overruled, because prepare, or evaluate, would refuse the merged data set. Only a large share of duplicates (and a
shift, flows.intake.shift) is a matter of judgment: `retemper intake accept`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from flows.batches.foreseen import Foreseen, Settings, foresee, judged_queries
from flows.batches.known import Known, Part, Reader, Rows, Sample, Seen, blocks, ignore_line, is_blank, pair_hashes, query_names
from flows.batches.records import Document, Files, Judged, Negative, Query, files_of, files_without_header
from flows.intake.settings import Gate
from tasks.core.sources.datasets import beir_layout, csv_layout
from tasks.core.statistics.judged import is_click
from tasks.core.tables.id_sets import hashes
from tasks.core.text.plain import record_label
from tasks.core.trec.ids import WHITE

Values: TypeAlias = npt.NDArray[np.float64]  # [N, 2]: grade and weight of judgments
VERSION = 7  # of the checks: raise it with each new reason to keep a batch out, so that accepted batches are checked again
MOST = 100  # lines of a batch that are named; the others are counted
MALFORMED, REPEATED, UNKNOWN = "malformed lines", "repeated ids or judgments", "judgments of unknown documents or queries"
EMPTY, WHITE_IDS, LEAKS = "empty texts", "ids with white space", "training queries that are also in dev or test"
VOID, IRRELEVANT, UNANSWERED = "empty parts", "splits without a relevant document", "queries of dev or test without answers"
ONE = {
    MALFORMED: "malformed line",
    REPEATED: "repeated id or judgment",
    UNKNOWN: "judgment of an unknown document or query",
    EMPTY: "empty text",
    WHITE_IDS: "id with white space",
    LEAKS: "training query that is also in dev or test",
    VOID: "empty part",
    IRRELEVANT: "split without a relevant document",
    UNANSWERED: "query of dev or test without answers",
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
    files = files_of(folder)
    if settings.whole:
        (csv_layout if files.csv else beir_layout)(folder, needs_qrels=settings.qrels)
    checking = _Checking(folder, known, settings, files, Reader(files, known.marks))
    for file in files_without_header(files):
        checking.findings.add(VOID, f"{file}: empty, expected a header and rows below it")
    texts, questions = Sample(size), Sample(size)
    new, duplicates = checking.documents(texts)
    queries = checking.queries(questions)
    judgments = {split: checking.judgments(split) for split in files.qrels}
    negatives = checking.negatives()
    checking.result(judgments)
    return Checked(
        len(checking.part.documents), new, queries, judgments, negatives, duplicates, checking.findings, texts.texts(), questions.texts()
    )


@dataclass(frozen=True)
class _Checking:
    """A batch that is being checked: each method reads a kind of record, adds it to `part`, and what is wrong with it to `findings`."""

    folder: Path
    known: Known
    settings: Settings
    files: Files
    reader: Reader
    part: Part = field(default_factory=Part)
    findings: Findings = field(default_factory=Findings)

    def documents(self, sample: Sample) -> tuple[int, int]:
        """Check the documents; return how many are new, and how many of those have the title and text of another one."""
        ids, contents, new, duplicates = Seen(), Seen(), 0, 0
        for block in blocks(self.reader.documents(self._malformed)):
            keys, text_keys, texts = self.part.add_documents(block)
            is_new = ~self.known.has_documents(keys)
            new += int(is_new.sum())
            duplicates += int((is_new & (self.known.has_texts(text_keys) | contents.add(text_keys))).sum())
            for document, repeated in zip(block, ids.add(keys).tolist(), strict=True):
                self._check_id(document, repeated=repeated)
                if self.settings.empty and is_blank(document):
                    name = record_label("document", document.id, repr(document.id))
                    self.findings.add(EMPTY, f"{document.at}: {name} has an empty title and text")
            sample.add(keys.tolist(), texts)
        return new, duplicates

    def queries(self, sample: Sample) -> int:
        """Check the queries; return how many there are."""
        ids, count = Seen(), 0
        for block in blocks(self.reader.queries(self._malformed)):
            keys = self.part.add_queries(block)
            is_repeated = ids.add(keys)
            count += int((~is_repeated).sum())
            for query, repeated in zip(block, is_repeated.tolist(), strict=True):
                self._check_id(query, repeated=repeated)
                if self.settings.empty and is_blank(query):
                    self.findings.add(EMPTY, f"{query.at}: {record_label('query', query.id, repr(query.id))} has an empty text")
            sample.add(keys.tolist(), [query.text for query in block])
        return count

    def judgments(self, split: str) -> int:
        """Check the judgments of a split; return how many there are."""
        values: list[Values] = []
        for block in blocks(self.reader.judgments(split, self._malformed)):
            self.part.add_judgments(split, block)
            values.append(np.array([(judgment.grade, judgment.weight) for judgment in block]))
            if self.settings.unknown:
                _check_known(block, self.known, self.findings, part=self.part)
        rows = self.part.judged.get(split, ())
        for later, first in _contradictions(self.reader, split, rows=rows, values=values):
            name = "weight" if later.grade == first.grade else "grade"
            mismatch = f"{name} {getattr(later, name)} of {later.query} and {later.doc}, {getattr(first, name)} before"
            self.findings.add(REPEATED, f"{later.at}: {mismatch}; keep one")
        return sum(len(block.docs) for block in rows)

    def negatives(self) -> int:
        """Check the negatives, once all else is read; return how many there are. Prepare reads those of training queries alone."""
        train, count = judged_queries(self.known.parts(self.folder.name, self.part), "train"), 0
        for block in blocks(self.reader.negatives(self._malformed)):
            count += len(block)
            documents_known = _have_documents(block, self.known, self.part)
            in_train = np.isin(hashes([negative.query for negative in block]), train)
            for negative, document_known, is_read in zip(block, documents_known, in_train.tolist(), strict=True):
                if self.settings.unknown and self.settings.negatives and is_read and not document_known:
                    self.findings.add(UNKNOWN, f"{negative.at}: document {negative.doc!r} is neither in the data set nor in this batch")
        return count

    def result(self, judgments: Mapping[str, int]) -> None:
        """Check what the merged data set would be. `judgments`: of the batch, by split."""
        before = foresee(self.known.parts(), self.settings)
        after = foresee(self.known.parts(self.folder.name, self.part), self.settings)
        read = [*self.known.files, self.files]
        if self.settings.leaks == "refuse":
            _check_leaks(before, after, self.findings, part=self.part, read=read)
        if self.settings.coverage:
            _check_answers(before, after, self.findings, coverage=self.settings.coverage, read=read)
        _check_splits(before, after, self.findings, files=self.files, folder=self.folder)
        if not after.texts and (before.texts or self.settings.whole):
            self.findings.add(VOID, f"{self.files.documents}: would leave no document with a title or a text, expected at least one")
        if self.settings.whole and self.settings.qrels:
            needed = {"dev": "to compare a new model with the champion"} | ({"train": "to train on"} if self.settings.train else {})
            for split, use in needed.items():
                if not judgments.get(split):
                    self.findings.add(VOID, f"{self.folder / 'qrels'}: found no judgment of {split}, expected some {use}")

    def _check_id(self, record: Document | Query, *, repeated: bool) -> None:
        if repeated:
            self.findings.add(REPEATED, f"{record.at}: id {record.id!r} is used twice in this batch")
        if self.settings.white_ids and WHITE.search(record.id):
            self.findings.add(WHITE_IDS, f"{record.at}: found id {record.id!r}, expected one without white space (or prepare.ids: escape)")

    def _malformed(self, line: str) -> None:
        self.findings.add(MALFORMED, line)


def may_arrive_later(reason: str) -> bool:
    """Whether a later batch may add what `reason` says is missing."""
    kind = reason.partition(": ")[0].partition(" ")[2]  # of `Findings.reasons`: what follows may quote the batch
    return kind in {name for late in (UNKNOWN, IRRELEVANT, UNANSWERED) for name in (late, ONE[late])}


def duplicates(checked: Checked, rules: Gate) -> list[str]:
    """The share of new documents that are copies, where it is too large."""
    share = checked.duplicates / max(checked.new, 1)
    if rules.duplicates is None or checked.new < rules.least or share <= rules.duplicates:
        return []
    return [
        f"{checked.duplicates:,} of {checked.new:,} new documents have the text of another one, expected at most {rules.duplicates:.0%}"
    ]


def _have_documents(lines: Sequence[Judged | Negative], known: Known, part: Part) -> list[bool]:
    """For each line, whether the data set or this batch (`part`) has its document."""
    keys = hashes([line.doc for line in lines])
    mask: list[bool] = (known.has_documents(keys) | part.documents.have(keys)).tolist()
    return mask


def _check_known(judged: Sequence[Judged], known: Known, findings: Findings, *, part: Part) -> None:
    """Check that a block of judgments has documents and queries of the data set or of this batch (`part`)."""
    keys = hashes([judgment.query for judgment in judged])
    query_mask = (known.has_queries(keys) | part.queries.have(keys)).tolist()
    for judgment, has_document, has_query in zip(judged, _have_documents(judged, known, part), query_mask, strict=True):
        if not has_document:
            findings.add(UNKNOWN, f"{judgment.at}: document {judgment.doc!r} is neither in the data set nor in this batch")
        if not has_query:
            findings.add(UNKNOWN, f"{judgment.at}: query {judgment.query!r} is neither in the data set nor in this batch")


def _contradictions(reader: Reader, split: str, *, rows: Sequence[Rows], values: Sequence[Values]) -> Iterator[tuple[Judged, Judged]]:
    """Judgments whose grade or weight is not that of the first judgment of their pair, each with that first one.

    `values` is parallel to `rows`. The file is read again if there are any, so that only these pairs are in memory.
    """
    if not rows:
        return
    pairs, all_values = np.concatenate([block_rows.pairs for block_rows in rows]), np.concatenate(values)
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    contradicted = {*pairs[(all_values != all_values[first][inverse]).any(axis=1)].tolist()}
    first_judgments: dict[int, Judged] = {}
    for judged in blocks(reader.judgments(split, ignore_line)) if contradicted else ():
        keys = pair_hashes(hashes([one.query for one in judged]), hashes([one.doc for one in judged]))
        for judgment, key in zip(judged, keys.tolist(), strict=True):
            other = first_judgments.setdefault(key, judgment) if key in contradicted else judgment
            if (other.grade, other.weight) != (judgment.grade, judgment.weight):
                yield judgment, other


def _check_leaks(before: Foreseen, after: Foreseen, findings: Findings, *, part: Part, read: Sequence[Files]) -> None:
    """Find training queries that would also be in dev or test once the batch, `part`, is merged, and are not yet.

    Their ids are in the files to `read`; the last one with a query counts.
    """
    new_leaks = {query: text for query, text in after.leaked.items() if query not in before.leaked}
    if not new_leaks:
        return
    held_out: dict[int, list[int]] = {}
    for query, text in after.held_out:
        held_out.setdefault(text, []).append(query)
    mentioned = np.array(sorted({*new_leaks, *(query for query, _ in after.held_out)}), dtype=np.uint64)
    is_ours = part.queries.have(mentioned)
    for block in (block for rows in part.judged.values() for block in rows):
        is_ours |= np.isin(mentioned, block.queries)
    ours = {*mentioned[is_ours].tolist()}
    lines: dict[int, str] = {}  # what is wrong with a query
    for query, text in new_leaks.items():
        other = next((held_query for held_query in held_out.get(text, ()) if held_query in ours), None)
        if query in after.by_id:
            lines[query] = "is judged in train and in dev or test"
        elif query in ours or other is None:
            lines[query] = "has the text of a query of dev or test"
        else:
            lines[other] = "has the text of a query of train"
    names = query_names(read, lines.keys())
    for name, line in sorted((names[query], line) for query, line in lines.items()):
        findings.add(LEAKS, f"query {name!r} {line}")


def _check_answers(before: Foreseen, after: Foreseen, findings: Findings, *, coverage: str, read: Sequence[Files]) -> None:
    """Find queries of dev and test that would have no answers once the batch is merged, and are not there yet: evaluate would fail, after
    the training. Dev queries of a click log are not measured with the others.
    """
    for split, queries in after.unanswered.items():
        names = query_names(read, {*queries} - {*before.unanswered[split]})
        for name in sorted(name for name in names.values() if split != "dev" or not is_click(name)):
            remedy = f"expected at least one, as evaluate.measures has {coverage}; add `answers` to its line in queries.jsonl"
            findings.add(UNANSWERED, f"query {name!r} of {split} has no answers, {remedy}")


def _check_splits(before: Foreseen, after: Foreseen, findings: Findings, *, files: Files, folder: Path) -> None:
    """Find splits without a relevant document once the batch is merged, if they have one now or the batch judges them."""
    for split, dropped in after.bare.items():
        if split not in before.bare or split in files.qrels:
            reason = f"prepare drops all that are relevant ({dropped:,})" if dropped else "every grade is 0 or less"
            line = f"{files.qrels.get(split, folder)}: would leave split {split} without a relevant document, {reason}"
            findings.add(IRRELEVANT, f"{line}; expected a grade above 0, here or in the data set")
