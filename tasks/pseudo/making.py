"""Queries from the words of a document. Every draw is a pure function of seed, document id, and number."""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tasks.core.stage.draws import draw_seed
from tasks.pseudo.params import Pseudo

SENTENCE_END = re.compile(r"[.!?]['\")\]]*\s|[。！？]")
CHOICE, DEV = b"choice", b"dev"  # what a hash decides


class Candidate(NamedTuple):
    """A query made from a document."""

    id: str
    kind: str
    text: str
    doc: str


def id_hash(doc: str, seed: int, salt: bytes) -> int:
    """64 bits of a document id: which documents become queries, and which of them belong to dev."""
    return int.from_bytes(blake2b(doc.encode(), digest_size=8, key=salt, salt=seed.to_bytes(16, "little")).digest(), "little")


def is_dev(doc: str, params: Pseudo) -> bool:
    """Whether a document is held out for dev."""
    return id_hash(doc, params.seed, DEV) < params.dev_share * 2**64


def plain(text: str) -> str:
    """A query's text as equal ones are found by: without case, and with single blanks (as in prepare.leaks)."""
    return " ".join(text.casefold().split())


def first_sentence(text: str) -> str:
    """The text up to its first full stop, question or exclamation mark before white space; all of it if there is none."""
    text = text.strip()
    found = SENTENCE_END.search(text)
    return text[: found.end()].strip() if found else text


def spans(words: list[str], doc: str, params: Pseudo) -> Iterator[str]:
    """`per_document` runs of consecutive words, least_words to most_words long; none if there are too few words."""
    most = min(params.most_words, len(words))
    if most < params.least_words:
        return
    key = id_hash(doc, params.seed, b"span")
    for number in range(params.per_document):
        draw = np.random.default_rng(draw_seed(params.seed, key, number))
        length = int(draw.integers(params.least_words, most + 1))
        start = int(draw.integers(len(words) - length + 1))
        yield " ".join(words[start : start + length])


def candidates(doc: str, title: str, text: str, params: Pseudo, generated: Sequence[str] = ()) -> list[Candidate]:
    """The queries of a document, by kind in the order of `kinds`; a text that the document has given already is left out.

    `generated` are those of pseudo.generator.
    """
    words = text.split()
    opening = first_sentence(text).split()
    made = {
        "title": [" ".join(title.split())],
        "sentence": [" ".join(opening[: params.most_sentence_words])] if len(opening) >= params.least_words else [],
        "span": spans(words, doc, params),
        "generated": generated,
    }
    found: dict[str, Candidate] = {}
    for kind in dict.fromkeys(params.kinds):
        for number, query in enumerate(made[kind]):
            if query:
                found.setdefault(plain(query), Candidate(f"pseudo-{kind}-{number}-{doc}", kind, query, doc))
    return list(found.values())
