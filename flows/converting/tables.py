"""Files that accompany training files: a corpus, queries, and qrels.

    corpus   Tevatron {docid, title (optional), text}, Pyserini {id, contents}, BEIR {_id, title (optional), text}, or {text} alone
    queries  id and text separated by a tab, or Tevatron {query_id, query or query_text}, or BEIR {_id, text}
    qrels    TREC's four columns: query, a number that is ignored, document, grade

Objects are JSON lines, plain or gzip, or Parquet; lines of text are plain or gzip.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.batches.records import shorten
from flows.converting.forms import MORE, Passage, extra_keys, identifier, string
from flows.converting.rows import cells, is_json, is_parquet, keys, refuse, rows
from tasks.core.sources.grades import EXPECTED, is_grade

CORPORA = (  # the key of an id, the key of a text, and the tool
    ("docid", "text", "Tevatron"),
    ("id", "contents", "Pyserini"),
    ("_id", "text", "BEIR"),
)
QUERIES = (
    ("query_id", "query_text", "Tevatron"),
    ("query_id", "query", "Tevatron"),
    ("_id", "text", "BEIR"),
)
TEXTS = "texts alone"
DOCUMENT_KEYS = "docid and text (Tevatron), id and contents (Pyserini), _id and text (BEIR), or text alone"
QUERY_KEYS = "query_id and query (Tevatron), or _id and text (BEIR)"


class Query(NamedTuple):
    at: str
    id: str
    text: str
    more: Mapping[str, Any] = {}


class Judgment(NamedTuple):
    at: str
    query: str
    doc: str
    grade: int


def documents(path: Path) -> tuple[str, Iterator[tuple[str, Passage]]]:
    """The form of a corpus, and its documents with their places."""
    at, first_keys = keys(path, DOCUMENT_KEYS)
    id_key, text_key, form = _keys_of(at, first_keys, CORPORA, expected=DOCUMENT_KEYS, alone="text")

    def read() -> Iterator[tuple[str, Passage]]:
        for place, row in rows(path, DOCUMENT_KEYS, [id_key, "title", text_key]):
            title = row.get("title") if id_key else None
            doc = identifier(place, id_key, row.get(id_key)) if id_key else None
            yield place, Passage(doc, "" if title is None else string(place, "title", title), string(place, text_key, row.get(text_key)))

    return form, read()


def queries(path: Path) -> tuple[str, Iterator[Query]]:
    """The form of a file of queries, and the queries."""
    if not is_parquet(path) and not is_json(path):
        return "tab-separated", (
            Query(at, identifier(at, "query id", query), text) for at, (query, text) in cells(path, ("query", "text"), "\t")
        )
    at, first_keys = keys(path, QUERY_KEYS)
    id_key, text_key, form = _keys_of(at, first_keys, QUERIES, expected=QUERY_KEYS)

    def read() -> Iterator[Query]:
        for place, row in rows(path, QUERY_KEYS, [id_key, text_key, *MORE]):
            yield Query(
                place, identifier(place, id_key, row.get(id_key)), string(place, text_key, row.get(text_key)), extra_keys(place, row)
            )

    return form, read()


def judgments(path: Path) -> Iterator[Judgment]:
    """The lines of TREC qrels."""
    for at, (query, _, doc, grade) in cells(path, ("query", "0", "document", "grade"), None):
        if not is_grade(grade):
            refuse(f"{at}: found grade {shorten(grade)}, expected {EXPECTED}")
        yield Judgment(at, identifier(at, "query id", query), identifier(at, "document id", doc), int(grade))


def passage_in_corpus(doc: str) -> Passage:
    """A document whose text is in a corpus."""
    return Passage(doc, "", None)


def _keys_of(
    at: str, keys: Sequence[str], forms: Sequence[tuple[str, str, str]], *, expected: str, alone: str = ""
) -> tuple[str, str, str]:
    """The keys of id and text, and the form's name. `alone`: a key that suffices without an id; the key of the id is then empty."""
    if found := next((form for form in forms if {*form[:2]} <= {*keys}), None):
        return found
    if [*keys] == [alone]:
        return "", alone, TEXTS
    return refuse(f"{at}: found {', '.join(keys) or 'no keys'}, expected {expected}")
