"""What a word is: lower-cased runs of two or more letters or digits, stopwords out, stemmed."""

import re
from collections.abc import Callable
from typing import get_args

import Stemmer
from bm25s import stopwords as lists

from tasks.bm25.params import Language

WORD = re.compile(r"\b\w\w+\b")  # bm25s' own; single characters carry little
STOPWORDS: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "english": frozenset(lists.STOPWORDS_EN),
    "english_plus": frozenset(lists.STOPWORDS_EN_PLUS),
    **{language: frozenset(getattr(lists, f"STOPWORDS_{language.upper()}")) for language in get_args(Language)},
}


def analyzer(stemmer: str, stopwords: str) -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order; `stemmer` is a Snowball language or none, `stopwords` a key of STOPWORDS."""
    stop = STOPWORDS[stopwords]
    stem = (lambda words: words) if stemmer == "none" else Stemmer.Stemmer(stemmer).stemWords

    def terms(text: str) -> list[str]:
        return list(stem([word for word in WORD.findall(text.lower()) if word not in stop]))

    return terms
