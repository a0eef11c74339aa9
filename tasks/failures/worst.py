"""The queries that lose most, with the documents that each system found, and the words that BM25 matches in them."""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.analysis import unspaced
from tasks.core.text.document import Text, document_text
from tasks.core.trec.runs import read_run
from tasks.failures.queries import Words
from tasks.failures.systems import Values

CHARACTERS = 600  # shown of a document's text
RELEVANT = 2  # relevant documents shown per query
FirstResults = Mapping[str, Mapping[str, tuple[str | None, int | None]]]  # system, query: first document, rank of the first relevant one
NOTHING = 1e-9  # smaller differences are rounding errors


def losers(values: Values, most: int, among: Container[str]) -> list[str]:
    """The `most` queries of `among` with the lowest differences below 0, ascending, ties by id.

    Without a second system, those with the lowest values below 1."""
    limit = -NOTHING if values.against is not None else 1 - NOTHING
    places = [place for place, value in enumerate(values.difference) if value < limit and values.queries[place] in among]
    order = sorted(places, key=lambda place: (values.difference[place], values.queries[place]))
    return [values.queries[place] for place in order[:most]]


def first_results(runs: Mapping[str, Path], relevant: Mapping[str, Sequence[str]]) -> FirstResults:
    """For each system and query of `relevant`: the document at rank 1, and the rank of the first relevant one."""

    def first_hit(query: str, docs: Sequence[str]) -> int | None:
        return next((rank for rank, doc in enumerate(docs, 1) if doc in relevant[query]), None)

    return {
        name: {query: (docs[0], first_hit(query, docs)) for query, docs in read_run(path) if query in relevant}
        for name, path in runs.items()
    }


def read_documents(path: Path, wanted: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The title and text of the `wanted` documents, by id."""
    ids = pa.array(sorted(set(wanted)), pa.string())
    rows = (batch.filter(pc.is_in(batch["id"], value_set=ids)).to_pylist() for batch in read_batches(path, DOCUMENTS))
    return {row["id"]: (row["title"], row["text"]) for part in rows for row in part}


def matched_words(query: str, document: str, words: Words) -> list[str]:
    """The words of `query` whose terms are in `document`, as BM25 analyses both, rarest first, each once.

    In scripts without blanks between words, the term itself is listed: text between two blanks is not a word there.
    """
    document_terms = set(words.terms(document))
    words_by_term: dict[str, str] = {}
    for word in query.split():
        for term in words.terms(word):
            if term in document_terms:
                words_by_term.setdefault(term, term if unspaced(word) else word.strip(".,;:!?\"'()[]"))
    return list(dict.fromkeys(words_by_term[term] for term in sorted(words_by_term, key=lambda term: (-words.idf(term), term))))


def describe(
    text: str,
    relevant: Sequence[str],
    found: Mapping[str, tuple[str | None, int | None]],
    documents: Mapping[str, tuple[str, str]],
    settings: Text,
    words: Words,
) -> dict[str, Any]:
    """A query's text, its first RELEVANT relevant documents, and each system's first document, with the words that BM25 matches in them."""

    def shown(doc: str) -> dict[str, Any]:
        title, body = documents[doc]
        return {
            "id": doc,
            "title": title,
            "text": truncate(body),
            "matched": matched_words(text, document_text(title, body, settings), words),
        }

    return {
        "text": text,
        "relevant": [shown(doc) for doc in relevant[:RELEVANT]],
        "systems": {
            name: {"first": shown(first) if first else None, "relevant": first in relevant, "rank": rank}
            for name, (first, rank) in found.items()
        },
    }


def truncate(text: str) -> str:
    """At most CHARACTERS characters of `text`, cut at a word boundary."""
    words = " ".join(text.split())
    return words if len(words) <= CHARACTERS else words[:CHARACTERS].rsplit(" ", 1)[0] + " …"
