"""Words: lowercased runs of two or more letters or digits, without stopwords, stemmed."""

import re
from collections.abc import Callable

import Stemmer

from tasks.core.text.without_jax import stopwords as lists

WORD = re.compile(r"\b\w\w+\b")  # bm25s' own; single characters say little


def stop_list(name: str) -> frozenset[str]:
    """bm25s' words of a name that params.yaml may have (tasks.bm25.params.Stopwords)."""
    theirs = {"english": "EN", "english_plus": "EN_PLUS"}.get(name, name.upper())
    return frozenset(() if name == "none" else getattr(lists, f"STOPWORDS_{theirs}"))


def analyzer(stemmer: str, stopwords: str) -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order; `stemmer` is a Snowball language or none, `stopwords` names a `stop_list`."""
    stop = stop_list(stopwords)
    stem = (lambda words: words) if stemmer == "none" else Stemmer.Stemmer(stemmer).stemWords

    def terms(text: str) -> list[str]:
        return list(stem([word for word in WORD.findall(text.lower()) if word not in stop]))

    return terms
