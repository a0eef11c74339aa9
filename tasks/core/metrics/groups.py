"""Queries by what they are like: what they ask, ranges of numbers, and the source's own columns."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import COLUMNS

WORD = re.compile(r"\w+")
ASKING = {"who": "who", "whom": "who", "whose": "who"} | {word: word for word in ("what", "when", "where", "which", "why", "how")}
AUXILIARY = re.compile(r"(is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)$")
MOST_VALUES = 12  # of a column that is grouped by its values


class Dimension(NamedTuple):
    """The group of each query [Q], and the groups in the order they are shown."""

    labels: Sequence[str]
    order: Sequence[str]


def question_word(text: str) -> str:
    """The first of who, what, when, where, which, why, how; "yes or no" for a query that begins with an auxiliary; else "none"."""
    words = [word.casefold() for word in WORD.findall(text)]
    found = next((ASKING[word] for word in words if word in ASKING), None)
    return found or ("yes or no" if words and AUXILIARY.match(words[0]) else "none")


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


def read_columns(path: Path) -> dict[str, dict[str, str]]:
    """The source's own columns: values by name and query; empty if it has none."""
    found: dict[str, dict[str, str]] = {}
    if path.exists():
        table = read_table(path, COLUMNS)
        for query, name, value in zip(*(table[name].to_pylist() for name in COLUMNS.names), strict=True):
            found.setdefault(name, {})[query] = value
    return found
