"""Properties of queries: length, rarity of their words, question word, and the source's own columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.core.lexical.search import load
from tasks.core.statistics.groups import Dimension, by_column, by_range, by_value, question_word
from tasks.core.text.analysis import analyzer
from tasks.failures.groups import rarity


class Words:
    """BM25's analysis of text, and the number of documents that a term is in."""

    def __init__(self, index: Path) -> None:
        searched, _, analysis = load(index)
        self.terms = analyzer(**analysis)
        self._numbers, self._starts = searched.vocab_dict, searched.scores["indptr"]
        self.documents = int(searched.scores["num_docs"])

    def frequencies(self, terms: Sequence[str]) -> dict[str, int]:
        """The number of documents with each of `terms`. Unknown terms are left out."""
        known = {term: self._numbers[term] for term in set(terms) if term in self._numbers}
        return {term: int(self._starts[number + 1] - self._starts[number]) for term, number in known.items()}

    def idf(self, term: str) -> float:
        """The idf of a term, as in `rarity`."""
        return rarity([term], self.frequencies([term]), self.documents)


def dimensions(texts: Mapping[str, str], columns: Mapping[str, Mapping[str, str]], words: Words, bins: int) -> dict[str, Dimension]:
    """Group queries in several ways. `texts`: by id; `columns`: the source's columns, as values by name and id."""
    query_terms = [words.terms(text) for text in texts.values()]
    groupings = {
        "words": by_range([len(text.split()) for text in texts.values()], bins),
        "rarity (mean idf)": by_range([rarity(terms, words.frequencies(terms), words.documents) for terms in query_terms], bins),
        "question word": by_value([question_word(text) for text in texts.values()]),
    }
    for name, values in columns.items():
        if dimension := by_column([values.get(query, "") for query in texts], bins):
            groupings[f"column {name}"] = dimension
    return groupings
