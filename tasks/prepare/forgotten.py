"""A source without the records that the project has forgotten (tasks.core.sources.forgotten)."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tasks.core.sources.forgotten import mark
from tasks.prepare.source import Document, Documents, Negative, Negatives, Parts, Qrel, Qrels, Queries, Query, Source

Judged = TypeVar("Judged", Qrel, Negative)


def without_forgotten(source: Source, marks: Collection[str]) -> Source:
    """`source` without forgotten documents and queries, and without all judgments and negatives that name one."""
    if not marks:
        return source
    return replace(
        source,
        documents=partial(_documents, source.documents, marks),
        queries={split: partial(_queries, read, marks) for split, read in source.queries.items()},
        qrels={split: partial(_qrels, read, marks) for split, read in source.qrels.items()},
        negatives=partial(_negatives, source.negatives, marks),
        parts=partial(_parts, source.parts, marks) if source.parts else None,
    )


def _parts(parts: Parts, marks: Collection[str]) -> Iterator[Documents]:
    return (partial(_documents, read, marks) for read in parts())


def _documents(read: Documents, marks: Collection[str]) -> Iterator[Document]:
    return (document for document in read() if mark("document", document.id) not in marks)


def _queries(read: Queries, marks: Collection[str]) -> Iterator[Query]:
    return (query for query in read() if mark("query", query.id) not in marks)


def _qrels(read: Qrels, marks: Collection[str]) -> Iterator[Qrel]:
    return (qrel for qrel in read() if _is_kept(qrel, marks))


def _negatives(read: Negatives, marks: Collection[str]) -> Iterator[Negative]:
    return (negative for negative in read() if _is_kept(negative, marks))


def _is_kept(judgment: Judged, marks: Collection[str]) -> bool:
    return mark("query", judgment.query) not in marks and mark("document", judgment.doc) not in marks
