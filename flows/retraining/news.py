"""What is new in the data since the champion was trained: documents, training queries, judgments."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class News:
    """Counts of what is new. A document with a changed text counts as new, as does a query with a changed text or other relevant documents.

    Queries are training queries with a relevant document. `known`: ids of the unchanged ones.
    """

    documents: int = 0  # new or changed
    removed: int = 0  # documents that are gone, or were changed
    documents_before: int = 0
    queries: int = 0
    queries_before: int = 0
    known: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """`1,204 new training queries (10,821 before), 0 new documents (5,664 before)`."""
        removed = f", {self.removed:,} gone or changed" if self.removed else ""
        return (
            f"{self.queries:,} new training queries ({self.queries_before:,} before), "
            f"{self.documents:,} new documents ({self.documents_before:,} before){removed}"
        )


def compare(before: Path, now: Path) -> News:
    """What is new in the corpus folder `now` since `before`. Takes 8 bytes of memory per document of each."""
    old, new = _documents(before), _documents(now)
    queries_before, queries = _queries(before), _queries(now)
    known = tuple(query for query, digest in queries.items() if queries_before.get(query) == digest)
    return News(
        documents=int((~np.isin(new, old)).sum()),
        removed=int((~np.isin(old, new)).sum()),
        documents_before=len(old),
        queries=len(queries) - len(known),
        queries_before=len(queries_before),
        known=known,
    )


def _documents(corpus: Path) -> Digests:
    """A 64-bit digest of every document. Two of 10 million share one with probability 3e-6; a new one may then pass for an old one."""
    from tasks.core.tables.parquet import read_batches
    from tasks.core.tables.schemas import DOCUMENTS

    digests = bytearray()
    for batch in read_batches(corpus / "documents.parquet", DOCUMENTS):
        columns = (batch[name].to_pylist() for name in ("id", "title", "text"))
        for row in zip(*columns, strict=True):
            digests += _digest(row)
    return np.frombuffer(bytes(digests), dtype=np.uint64)


def _queries(corpus: Path) -> dict[str, bytes]:
    """By id, for every training query with a relevant document: a digest of its text and those documents. Empty without a train split."""
    from tasks.core.tables.parquet import read_table
    from tasks.core.tables.schemas import QRELS
    from tasks.core.text.mapped import query_texts

    relevant: dict[str, list[Any]] = defaultdict(list)
    if not (corpus / "qrels/train.parquet").exists():
        return {}
    table = read_table(corpus / "qrels/train.parquet", QRELS)
    for query, doc, grade in zip(*(table[name].to_pylist() for name in ("query", "doc", "grade")), strict=True):
        if grade > 0:
            relevant[query].append((doc, grade))
    return {query: _digest((text, sorted(relevant[query]))) for query, text in query_texts(corpus, "train") if query in relevant}


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
