"""The queries that lose most, with the documents that each system found, and the words that BM25 matches in them."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from tasks.core.tables.documents import shortened
from tasks.core.text.analysis import unspaced
from tasks.core.text.document import Text, document_text
from tasks.failures.queries import Words
from tasks.failures.systems import Values

CHARACTERS = 600  # shown of a document's text
RELEVANT = 2  # relevant documents shown per query
FirstResults = Mapping[str, Mapping[str, tuple[str, int | None]]]  # system, query: first document, rank of the first relevant one
NOTHING = 1e-9  # smaller differences are rounding errors


def losers(values: Values, most: int, among: Container[str]) -> list[str]:
    """The `most` queries of `among` with the lowest differences below 0, ascending, ties by id.

    Without a second system, those with the lowest values below 1."""
    limit = -NOTHING if values.against is not None else 1 - NOTHING
    places = [place for place, value in enumerate(values.difference) if value < limit and values.queries[place] in among]
    order = sorted(places, key=lambda place: (values.difference[place], values.queries[place]))
    return [values.queries[place] for place in order[:most]]


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
            "text": shortened(body, CHARACTERS),
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
