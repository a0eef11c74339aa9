"""Words: lowercased runs of two or more letters or digits with their combining marks, without stopwords, stemmed."""

import re
import unicodedata
from collections.abc import Callable

import regex
import Stemmer

from tasks.core.text.without_jax import stopwords as lists

ASCII_WORD = re.compile(r"\b\w\w+\b")  # bm25s' own; single characters say little
WORD = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]+")  # the same, but Python's \w has no marks, which most words of Hindi have


def words(text: str) -> list[str]:
    """The words of a text as they stand."""
    found: list[str] = (ASCII_WORD if text.isascii() else WORD).findall(text)
    return found


def lowered(text: str, turkish: bool) -> str:
    """A text in lower case, composed (NFC), and without the dot above that Python leaves of a capital one (as in Istanbul)."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if turkish:
        text = text.replace("I", "\N{LATIN SMALL LETTER DOTLESS I}")
    return text.lower() if text.isascii() else text.lower().replace("i\N{COMBINING DOT ABOVE}", "i")


def stop_list(name: str) -> frozenset[str]:
    """bm25s' words of a name that params.yaml may have (tasks.bm25.params.Stopwords)."""
    theirs = {"english": "EN", "english_plus": "EN_PLUS"}.get(name, name.upper())
    return frozenset(() if name == "none" else getattr(lists, f"STOPWORDS_{theirs}"))


def analyzer(stemmer: str, stopwords: str) -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order; `stemmer` is a Snowball language or none, `stopwords` names a `stop_list`."""
    stop = stop_list(stopwords)
    stem = (lambda words: words) if stemmer == "none" else Stemmer.Stemmer(stemmer).stemWords

    turkish = "turkish" in (stemmer, stopwords)

    def terms(text: str) -> list[str]:
        return list(stem([word for word in words(lowered(text, turkish)) if word not in stop]))

    return terms
