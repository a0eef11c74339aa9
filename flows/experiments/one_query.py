"""`retemper compare A B ... --query ID`: what each system finds for one query, and the ranks of its relevant documents.

The lists are from the measured runs. Texts, judgments, and tokens are from this working tree.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.experiments.compare import Side, cached_file, questions, side_of
from flows.experiments.store import PARAMS
from flows.process.display import text_table
from flows.repository.lock import corpus_of, current_lock, out_digests
from tasks.core.errors import UserError, printable
from tasks.core.metrics.selection import least_grade, metric_of
from tasks.core.params.sections import read_yaml
from tasks.core.statistics.judged import is_click

RUNS, TOKENS = Path("data/runs"), Path("data/tokens/documents")
SPLITS = ("train", "dev", "test")
TOP = 10  # documents shown of a system
WIDTH = 100  # characters shown of a text
UNKNOWN = "(not in this working tree's corpus)"

Read = tuple[int | None, bool | None]  # a document's number of tokens, and whether it is the maximum
UNREAD: Read = None, None


@dataclass(frozen=True)
class Hit:
    """A document that a system found. `grade`: None if nobody judged it; `text`: its title or the start of its text; None if unknown."""

    rank: int
    score: float
    id: str
    grade: int | None
    relevant: bool
    text: str | None


@dataclass(frozen=True)
class SystemList:
    """A system's list: its length, and the first documents. `value`: of the measure; None if the query was not measured."""

    name: str
    value: float | None
    listed: int
    top: tuple[Hit, ...]


@dataclass(frozen=True)
class Relevant:
    """A relevant document, and its rank in each system's list, None if it is not in it. `tokens`: how many encoders read, None if unknown;
    `full`: it has as many as tokenize.document_length allows, so any further text was cut."""

    id: str
    grade: int
    ranks: tuple[int | None, ...]
    tokens: int | None
    full: bool | None
    text: str | None


@dataclass(frozen=True)
class Answer:
    """All that is shown about one query. `least`: the lowest relevant grade; `notes`: remarks for the reader."""

    split: str
    measure: str
    query: str
    text: str
    least: int
    systems: tuple[SystemList, ...]
    relevant: tuple[Relevant, ...]
    notes: tuple[str, ...]


def show(names: Sequence[str], query: str, *, split: str, measure: str | None, as_json: bool) -> None:
    """Print what the systems find for `query`. Raises UserError if a system or its run is missing, or the split lacks the query."""
    sections = read_yaml(Path(PARAMS))
    measure = measure or metric_of(sections)
    sides = [side_of(name, sections, split=split, measure=measure) for name in names]
    result = answer(sides, query, split=split, measure=measure, least=least_grade(split, sections))
    print(json.dumps(asdict(result), indent=2) if as_json else printable(text(result)))


def answer(sides: Sequence[Side], query: str, *, split: str, measure: str, least: int) -> Answer:
    """Look up what the systems find for `query`. Raises UserError if the split lacks it, or a run is missing."""
    from tasks.core.metrics.qrels import load_qrels

    lock, query_texts = current_lock(), questions(split)
    known = query_texts or dict.fromkeys(sides[0].values, "")
    if query not in known:
        raise UserError(_unknown(query, split, known))
    corpus = Path(corpus_of(lock))
    grades = load_qrels(corpus / "qrels" / f"{split}.parquet", split, least).get(query, {})
    relevant = sorted((doc for doc, grade in grades.items() if grade >= least), key=lambda doc: (-grades[doc], doc))
    lists = [_list(side, query, split) for side in sides]
    texts = _texts(corpus / "documents.parquet", {*relevant, *(doc for scores in lists for doc in list(scores)[:TOP])})
    tokens = _tokens(relevant)
    places = [{doc: rank for rank, doc in enumerate(scores, 1)} for scores in lists]

    def top(scores: Mapping[str, float]) -> Iterator[Hit]:
        for rank, (doc, score) in enumerate(list(scores.items())[:TOP], 1):
            yield Hit(rank, score, doc, grades.get(doc), doc in relevant, texts.get(doc))

    return Answer(
        split=split,
        measure=measure,
        query=query,
        text=" ".join(known[query].split()),
        least=least,
        systems=tuple(
            SystemList(side.name, side.values.get(query), len(scores), tuple(top(scores)))
            for side, scores in zip(sides, lists, strict=True)
        ),
        relevant=tuple(
            Relevant(doc, grades[doc], tuple(place.get(doc) for place in places), *tokens.get(doc, UNREAD), texts.get(doc))
            for doc in relevant
        ),
        notes=tuple(
            f"{side.name}: made from another {corpus}; texts and judgments here are this working tree's"
            for side in sides
            if side.stages and out_digests(side.stages).get(str(corpus)) != out_digests(lock).get(str(corpus))
        ),
    )


def _unknown(query: str, split: str, known: Mapping[str, str]) -> str:
    where = f"compare --query {query}"
    if other := next((name for name in SPLITS if name != split and query in questions(name)), ""):
        remedy = "systems are not measured on it" if other == "train" else f"add --split {other}"
        return f"{where}: found a query of {other}, expected one of {split}; {remedy}"
    examples = ", ".join(list(known)[:3])
    return f"{where}: found no such query among the {len(known):,} of {split}, expected an id of one of them ({examples}, ...)"


def _list(side: Side, query: str, split: str) -> dict[str, float]:
    """The scores of the documents of a system's list, best first."""
    from tasks.core.trec.external import read_scored_trec_run
    from tasks.core.trec.runs import read_scored_run

    if not side.stages:
        return {doc: float(score) for doc, score in read_scored_trec_run(Path(side.name)).get(query, {}).items()}
    run = read_scored_run(cached_file(f"compare {side.name}", RUNS / side.model / f"{split}.trec", side.stages))
    return next((dict(zip(docs, scores.tolist(), strict=True)) for name, docs, scores in run if name == query), {})


def _texts(path: Path, docs: Iterable[str]) -> dict[str, str]:
    """By document: its title, or else the start of its text. Documents that the corpus lacks are absent."""
    from tasks.core.tables.documents import shortened, texts_of

    found = texts_of(path, docs)
    return {doc: shortened(title if title and title != doc else body, WIDTH) for doc, (title, body) in found.items()}


def _tokens(docs: Sequence[str]) -> dict[str, Read]:
    """The tokens of each document by data/tokens, and whether its last passage has the maximum; empty if that folder is missing."""
    import numpy as np
    import pyarrow as pa

    from tasks.core.tables.ids import ordinals
    from tasks.core.tokens.folder import open_tokens

    if not docs or not TOKENS.is_dir():
        return {}
    tokens = open_tokens(TOKENS)
    owners = ordinals(pa.chunked_array([pa.array(docs, pa.string())]), TOKENS / "ids.parquet")
    counts: dict[str, Read] = {}
    for doc, owner in zip(docs, owners.tolist(), strict=True):
        if owner >= 0:
            rows = tokens.rows_of(np.array([owner]))[0]
            lengths = tokens.offsets[rows + 1] - tokens.offsets[rows]
            counts[doc] = (int(lengths.sum()), int(lengths[-1]) == tokens.max_length)
    return counts


def text(result: Answer) -> str:
    """The query, the systems' values, what each system finds, and the ranks of the relevant documents."""
    no_value = "measured apart, with the other clicks" if is_click(result.query) else "not measured"
    values = [[system.name, no_value if system.value is None else f"{system.value:.4f}"] for system in result.systems]
    parts = [f"{result.split} {result.query}: {result.text}", text_table(["system", result.measure], values)]
    for system in result.systems:
        hits = [
            [
                str(hit.rank),
                f"{hit.score:.4f}",
                hit.id,
                f"{'' if hit.grade is None else hit.grade}{'*' if hit.relevant else ''}",
                _text_of(hit),
            ]
            for hit in system.top
        ]
        listed = text_table(["rank", "score", "document", "grade", "text"], hits) if hits else "finds nothing"
        parts.append(f"{system.name}\n{listed}")
    header = ["relevant", "grade", *(system.name for system in result.systems), "tokens", "text"]
    rows = [
        [
            doc.id,
            str(doc.grade),
            *(str(rank or f"not among the first {system.listed:,}") for rank, system in zip(doc.ranks, result.systems, strict=True)),
            f"{doc.tokens or ''}{' (full)' if doc.full else ''}",
            _text_of(doc),
        ]
        for doc in result.relevant
    ]
    parts.append(text_table(header, rows) if rows else f"no document is judged relevant (grade {result.least} or more)")
    notes = [f"*: relevant, of grade {result.least} or more; without a grade: not judged"]
    if any(doc.full for doc in result.relevant):
        notes.append("full: as many tokens as tokenize.document_length allows; encoders do not read any text beyond them")
    return "\n\n".join([*parts, "\n".join([*notes, *result.notes])])


def _text_of(document: Hit | Relevant) -> str:
    return UNKNOWN if document.text is None else document.text
