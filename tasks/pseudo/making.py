"""Make queries from the words of a document. Every draw is a pure function of seed, document id, and number.

Words stand between blanks. In text without blanks (Han, kana, Thai, Lao, Khmer, Myanmar; Korean has blanks), two characters are a word, as
in the bigrams that BM25 finds such text by. A letter with its marks is one character. So a span of 3 to 12 words has 6 to 24 characters
there. It may begin within a word, like the crops of Contriever (arXiv:2112.09118), which are runs of tokens. In a text with few letters of
such scripts, a name in one of them stays one word.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import regex

from tasks.core.stage.draws import draw_seed
from tasks.core.text.analysis import SPACED, UNSPACED, unspaced
from tasks.core.text.plain import plain
from tasks.pseudo.params import Pseudo

SENTENCE_END = re.compile(r"[.!?]['\")\]]*\s|[。！？][」』”’）]*")
BARE = rf"[{UNSPACED}--\p{{Hangul}}]"
BARE_LETTER, LETTER = regex.compile(rf"(?V1){BARE}"), regex.compile(r"\p{L}")
NAME = 12  # in a text with few such letters, a run of at most this many is one word, such as a name
# Opening brackets go with the characters after them, other marks with those before.
UNIT = regex.compile(rf"(?V1)[\p{{Ps}}\p{{Pi}}]*(?:(?:{BARE}\p{{M}}*){{1,2}}|[{SPACED}\p{{Hangul}}][{SPACED}\p{{Hangul}}\p{{M}}]*)")
CHOICE, DEV = b"choice", b"dev"  # salts of hashes, one for each decision


class Candidate(NamedTuple):
    """A query made from a document."""

    id: str
    kind: str
    text: str
    doc: str


def id_hash(doc: str, seed: int, salt: bytes) -> int:
    """A 64-bit hash of a document id. It decides which documents become queries, and which of them belong to dev, by `salt`."""
    return int.from_bytes(blake2b(doc.encode(), digest_size=8, key=salt, salt=seed.to_bytes(16, "little")).digest(), "little")


def is_dev(doc: str, params: Pseudo) -> bool:
    """Whether a document is held out for dev."""
    return id_hash(doc, params.seed, DEV) < params.dev_share * 2**64


def words_of(text: str) -> list[str]:
    """The words of a text, each with the blank before it, if any. Joined, a run of words is a text again (`joined`)."""
    if not unspaced(text):
        return [f" {word}" for word in text.split()]
    limit = 0 if 3 * _count(BARE_LETTER, text) > _count(LETTER, text) else NAME  # a third is enough: such a letter carries more meaning
    words = list[str]()
    for word in text.split():
        starts = [match.start() for match in UNIT.finditer(word)][1:] if _count(BARE_LETTER, word) > limit else []
        bounds = [0, *starts, len(word)]
        words += [" " * (start == 0) + word[start:end] for start, end in pairwise(bounds)]
    return words


def _count(pattern: regex.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def joined(words: Sequence[str]) -> str:
    """Join words from `words_of` into a text."""
    return "".join(words).lstrip(" ")


def first_sentence(text: str) -> str:
    """The text up to its first full stop, question or exclamation mark before white space (in CJK also without); else all of it."""
    text = text.strip()
    match = SENTENCE_END.search(text)
    return text[: match.end()].strip() if match else text


def spans(words: list[str], doc: str, params: Pseudo) -> Iterator[str]:
    """Draw `per_document` runs of consecutive words, least_words to most_words long. None if there are too few words."""
    most = min(params.most_words, len(words))
    if most < params.least_words:
        return
    key = id_hash(doc, params.seed, b"span")
    for number in range(params.per_document):
        draw = np.random.default_rng(draw_seed(params.seed, key, number))
        length = int(draw.integers(params.least_words, most + 1))
        start = int(draw.integers(len(words) - length + 1))
        yield joined(words[start : start + length])


def candidates(doc: str, title: str, text: str, params: Pseudo, generated: Sequence[str] = ()) -> list[Candidate]:
    """The queries of a document, by kind in the order of `kinds`. A text that the document has given before is left out.

    `generated`: the queries from pseudo.generator.
    """
    words, opening = words_of(text), words_of(first_sentence(text))
    texts_by_kind = {
        "title": [" ".join(title.split())],
        "sentence": [joined(opening[: params.most_sentence_words])] if len(opening) >= params.least_words else [],
        "span": spans(words, doc, params),
        "generated": generated,
    }
    unique: dict[str, Candidate] = {}
    for kind in dict.fromkeys(params.kinds):
        for number, query in enumerate(texts_by_kind[kind]):
            if query:
                unique.setdefault(plain(query), Candidate(f"pseudo-{kind}-{number}-{doc}", kind, query, doc))
    return list(unique.values())
