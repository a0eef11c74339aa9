"""Training files of other tools. A form is recognized by the keys of a file's first row, and reads rows as queries with passages.

    Tevatron (passages)    query_id, query, positive_passages and negative_passages [{docid, title (optional), text}]
    Tevatron (ids)         query_id, query_text or query, positive_document_ids, negative_document_ids; the texts are in a corpus
    FlagEmbedding          query, pos [text], neg [text]; scores (pos_scores, neg_scores) are ignored
    sentence-transformers  a query (anchor, query, question or sentence1), a text (positive, answer, sentence2 or docs), then either
                           negatives (negative, negative_1 ...), or a label (label, labels, score, scores): 1 positive, 0 negative; text
                           and label may be lists of one length (its labeled-list)

Formats: Tevatron's TrainDataset (src/tevatron/retriever/dataset.py), FlagEmbedding's examples/finetune, and sentence-transformers'
Dataset Overview and mine_hard_negatives. sentence-transformers goes by the order of columns, not by their names; here names count, so a
file with other names is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from flows.batches.records import shorten
from flows.converting.rows import Row, refuse
from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import HALVES
from tasks.core.sources.answers import is_answers
from tasks.core.sources.pairs import ANCHORS, LABELS, NEGATIVE

EXPECTED = (
    "the keys of Tevatron (query_id, query, positive_passages; or query_id, query_text, positive_document_ids), "
    "FlagEmbedding (query, pos), or sentence-transformers (anchor, query, question or sentence1, and positive, answer, sentence2 or docs)"
)
POSITIVES = ("positive", "answer", "sentence2", "docs")
MORE = ("answers", "metadata")


class Passage(NamedTuple):
    """A passage as in a row. Without an id, its id is made from its text; without a text, the text is in a corpus."""

    id: str | None
    title: str
    text: str | None


class Example(NamedTuple):
    """A query with its passages. Without an id, its id is made from its text."""

    at: str
    id: str | None
    text: str
    positives: Sequence[Passage]
    negatives: Sequence[Passage]
    more: Mapping[str, Any] = {}  # of the query: MORE


@dataclass(frozen=True)
class Form:
    """How to read a file. `columns`: the keys to read; `by_text`: its passages have no ids."""

    name: str
    columns: tuple[str, ...]
    read: Callable[[str, Row], Example]
    by_text: bool = False


def form_of(at: str, keys: Sequence[str]) -> Form:
    """The form of a file whose first row has `keys`. Raises UserError if there is none."""
    readers = (_tevatron, _tevatron_ids, _flag_embedding, _sentence_transformers)
    if form := next(filter(None, (reader(at, keys) for reader in readers)), None):
        return form
    return refuse(f"{at}: found {', '.join(keys) or 'no keys'}, expected {EXPECTED}")


def identifier(at: str, name: str, value: object) -> str:
    """An id, which may be an integer. Raises UserError for one that qrels cannot hold."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        refuse(f"{at}: found {_describe(name, value)}, expected a string or an integer")
    text = str(value)
    if not text or any(mark in text for mark in "\t\r\n\0") or HALVES.search(text):
        refuse(f"{at}: found {name} {shorten(text)}, expected a non-empty id without tabs, line ends, NUL, or half characters")
    return text


def string(at: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        refuse(f"{at}: found {_describe(name, value)}, expected a string")
    return value


def extra_keys(at: str, row: Row) -> dict[str, Any]:
    """The keys of a query, other than its text, that BEIR's form keeps. Raises UserError for answers that are not strings."""
    extras = {name: row[name] for name in MORE if row.get(name)}
    if not is_answers(extras.get("answers", [])):
        refuse(f"{at}: found {_describe('answers', extras['answers'])}, expected a list of strings")
    if not isinstance(extras.get("metadata", {}), dict):
        refuse(f"{at}: found {_describe('metadata', extras['metadata'])}, expected an object")
    return extras


def _tevatron(_at: str, keys: Sequence[str]) -> Form | None:
    if not {"query", "positive_passages"} <= {*keys}:
        return None

    def read(at: str, row: Row) -> Example:
        def passages(name: str) -> list[Passage]:
            return [_passage(at, name, item) for item in _list(at, name, row.get(name), of="passages (docid, title, text)")]

        positives, negatives = passages("positive_passages"), passages("negative_passages")
        return Example(at, *_query(at, row, "query"), positives, negatives, extra_keys(at, row))

    return Form("Tevatron (passages)", ("query_id", "query", "positive_passages", "negative_passages", *MORE), read)


def _tevatron_ids(_at: str, keys: Sequence[str]) -> Form | None:
    query = next((name for name in ("query_text", "query") if name in keys), None)
    if not query or "positive_document_ids" not in keys:
        return None

    def read(at: str, row: Row) -> Example:
        def passages(name: str) -> list[Passage]:
            return [Passage(identifier(at, f"{name} item", item), "", None) for item in _list(at, name, row.get(name), of="ids")]

        positives, negatives = passages("positive_document_ids"), passages("negative_document_ids")
        return Example(at, *_query(at, row, query), positives, negatives, extra_keys(at, row))

    return Form("Tevatron (ids)", ("query_id", query, "positive_document_ids", "negative_document_ids", *MORE), read)


def _flag_embedding(at: str, keys: Sequence[str]) -> Form | None:
    if not {"query", "pos"} <= {*keys}:
        return None
    if "neg" not in keys and (other := next((key for key in keys if key.startswith("neg") and key != "neg_scores"), None)):
        raise UserError(f"{at}: found key {other}, expected neg for FlagEmbedding's negatives; rename it")

    def read(at: str, row: Row) -> Example:
        def passages(name: str) -> list[Passage]:
            return [Passage(None, "", string(at, f"{name} item", item)) for item in _list(at, name, row.get(name), of="strings")]

        return Example(at, None, string(at, "query", row.get("query")), passages("pos"), passages("neg"))

    return Form("FlagEmbedding", ("query", "pos", "neg"), read, by_text=True)


def _sentence_transformers(at: str, keys: Sequence[str]) -> Form | None:
    roles = {role: [key for key in keys if key in names] for role, names in (("query", ANCHORS), ("text", POSITIVES), ("label", LABELS))}
    if not roles["query"] or not roles["text"]:
        return None
    numbers = {key: int(found[1] or 0) for key in keys if (found := NEGATIVE.fullmatch(key))}
    if duplicates := next((names for names in roles.values() if len(names) > 1), None):
        raise UserError(f"{at}: found both {' and '.join(duplicates)}, expected one of them; remove or rename one")
    if unknown := [key for key in keys if key not in numbers and not any(key in names for names in roles.values())]:
        wanted = f"{'|'.join(ANCHORS)}, {'|'.join(POSITIVES)}, negative, negative_1 ..., {'|'.join(LABELS)}"
        raise UserError(f"{at}: found column {', '.join(unknown)}, expected those of sentence-transformers ({wanted}); remove or rename it")
    query, text = roles["query"][0], roles["text"][0]
    negatives = tuple(sorted(numbers, key=lambda key: numbers[key]))
    label = "" if negatives else "".join(roles["label"])  # with negatives, it is a teacher's score
    columns = (query, text, *negatives, *roles["label"])
    read = partial(_pair, query=query, text=text, negatives=negatives, label=label, columns=columns)
    return Form("sentence-transformers", columns, read, by_text=True)


def _pair(at: str, row: Row, *, query: str, text: str, negatives: Sequence[str], label: str, columns: Sequence[str]) -> Example:
    if unexpected := [key for key in row if key not in columns]:
        refuse(f"{at}: found {', '.join(unexpected)}, expected the keys of the first line ({', '.join(columns)})")
    query_text = string(at, query, row.get(query))
    if not label:
        others = [Passage(None, "", string(at, name, row[name])) for name in negatives if row.get(name) is not None]
        return Example(at, None, query_text, [Passage(None, "", string(at, text, row.get(text)))], others)
    texts, values = row.get(text), row.get(label)
    if not isinstance(texts, list):
        texts, values = [texts], [values]
    elif not isinstance(values, list) or len(values) != len(texts):
        raise UserError(f"{at}: found {_describe(label, values)}, expected a list of {len(texts)}, one for each of {text}")
    if invalid := [value for value in values if not isinstance(value, int | float) or value not in (0, 1)]:
        raise UserError(f"{at}: found {_describe(label, invalid[0])}, expected 1 (a positive) or 0 (a negative); choose a threshold")
    passages = [Passage(None, "", string(at, text, one)) for one in texts]
    positives, others = ([one for one, value in zip(passages, values, strict=True) if bool(value) is wanted] for wanted in (True, False))
    return Example(at, None, query_text, positives, others)


def _query(at: str, row: Row, name: str) -> tuple[str, str]:
    return identifier(at, "query_id", row.get("query_id")), string(at, name, row.get(name))


def _passage(at: str, name: str, item: object) -> Passage:
    if not isinstance(item, dict):
        refuse(f"{at}: found {shorten(item)} in {name}, expected an object with docid, title, and text")
    title = item.get("title")
    text = string(at, f"{name}.text", item.get("text"))
    return Passage(identifier(at, f"{name}.docid", item.get("docid")), "" if title is None else string(at, f"{name}.title", title), text)


def _list(at: str, name: str, value: object, *, of: str) -> list[Any]:
    if value is None and name.startswith("neg"):
        return []
    if not isinstance(value, list):
        refuse(f"{at}: found {_describe(name, value)}, expected a list of {of}")
    return value


def _describe(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name} {shorten(value)}"
