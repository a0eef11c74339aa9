"""What a word is: lower-cased runs of two or more letters or digits, stopwords out, stemmed."""

import re
from collections.abc import Callable

import Stemmer
from bm25s.stopwords import STOPWORDS_EN, STOPWORDS_EN_PLUS

WORD = re.compile(r"\b\w\w+\b")  # bm25s' own; single characters carry little
STOPWORDS: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "english": frozenset(STOPWORDS_EN),
    "english_plus": frozenset(STOPWORDS_EN_PLUS),
}


def analyzer(stemmer: str, stopwords: str) -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order; `stemmer` is a Snowball language or none, `stopwords` a key of STOPWORDS."""
    stop = STOPWORDS[stopwords]
    stem = (lambda words: words) if stemmer == "none" else Stemmer.Stemmer(stemmer).stemWords

    def terms(text: str) -> list[str]:
        return list(stem([word for word in WORD.findall(text.lower()) if word not in stop]))

    return terms
