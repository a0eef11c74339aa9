"""Queries by what they are like, and the difference of two systems in each group.

Lengths are in words; rarity is the mean idf of a query's distinct terms, as BM25 weighs them (log(1 + (N - n + 0.5) / (n + 0.5)),
n documents of N with the term): both are what dense and lexical retrieval are known to differ by (Sciavolino et al.: Simple
Entity-Centric Questions Challenge Dense Retrievers, EMNLP 2021, arXiv:2109.08535).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.core.metrics.paired_tests import holm, mean_interval, paired_t_test

Floats = npt.NDArray[np.float64]
WORD = re.compile(r"\w+")
ASKING = {"who": "who", "whom": "who", "whose": "who"} | {word: word for word in ("what", "when", "where", "which", "why", "how")}
AUXILIARY = re.compile(r"(is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)$")
MOST_VALUES = 12  # of a column that is grouped by its values


class Dimension(NamedTuple):
    """The group of each query [Q], and the groups in the order they are shown."""

    labels: Sequence[str]
    order: Sequence[str]


@dataclass(frozen=True)
class Group:
    """The mean difference of the queries of one group, its 1 - alpha interval, and p, Holm-corrected over the groups of the split.

    Without an other system, `against` is None and the interval is that of the model's mean. Groups below the minimum have no interval.
    """

    dimension: str
    name: str
    queries: int
    model: float
    against: float | None
    difference: float
    low: float | None
    high: float | None
    p_holm: float | None


def question_word(text: str) -> str:
    """The first of who, what, when, where, which, why, how; "yes or no" for a query that begins with an auxiliary; else "none"."""
    words = [word.casefold() for word in WORD.findall(text)]
    found = next((ASKING[word] for word in words if word in ASKING), None)
    return found or ("yes or no" if words and AUXILIARY.match(words[0]) else "none")


def rarity(terms: Iterable[str], frequencies: Mapping[str, int], documents: int) -> float:
    """The mean idf of the distinct `terms`, of which `frequencies` has the numbers of documents (0 if absent); 0 without terms."""
    idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in (frequencies.get(term, 0) for term in sorted(set(terms)))]
    return sum(idf) / len(idf) if idf else 0.0


def by_value(values: Sequence[str]) -> Dimension:
    """A group for each value, the most frequent first."""
    return Dimension(values, [value for value, _ in sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))])


def by_range(values: Sequence[float], bins: int) -> Dimension:
    """`bins` groups of about as many values each, equal values in one, named by their range: "3 to 5"."""
    numbers = np.asarray(values, dtype=np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, bins + 1) / bins, method="inverted_cdf"))
    places = np.searchsorted(edges, numbers)
    names = []
    for place in range(len(edges)):
        inside = numbers[places == place]
        low, high = _short(inside.min()), _short(inside.max())
        names.append(low if low == high else f"{low} to {high}")
    return Dimension([names[place] for place in places], names)


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def by_column(values: Sequence[str], bins: int) -> Dimension | None:
    """A user's column, "" where a query has no value: by value, or by range if there are many and all are numbers; else None."""
    if len(set(values)) <= MOST_VALUES:
        return by_value([value or "(none)" for value in values])
    try:
        return by_range([float(value) for value in values], bins)
    except ValueError:
        return None


def compare(dimensions: Mapping[str, Dimension], model: Floats, against: Floats | None, *, least: int, alpha: float) -> list[Group]:
    """The groups of every dimension that divides the queries; those of at least `least` queries are one family of tests."""
    found = [
        (dimension, name, np.asarray([label == name for label in labels]))
        for dimension, (labels, order) in dimensions.items()
        if len(order) > 1
        for name in order
    ]
    tests = {
        place: _test(model[rows], None if against is None else against[rows], alpha)
        for place, (_, _, rows) in enumerate(found)
        if rows.sum() >= least
    }
    corrected = dict(zip(tests, holm([p for p, _, _ in tests.values()]), strict=True)) if against is not None else {}
    groups = []
    for place, (dimension, name, rows) in enumerate(found):
        mean, other = float(model[rows].mean()), None if against is None else float(against[rows].mean())
        _, low, high = tests.get(place, (None, None, None))
        groups.append(Group(dimension, name, int(rows.sum()), mean, other, mean - (other or 0.0), low, high, corrected.get(place)))
    return groups


def _test(model: Floats, against: Floats | None, alpha: float) -> tuple[float, float | None, float | None]:
    return (1.0, *mean_interval(model, alpha)) if against is None else paired_t_test(model, against, alpha)
