"""Groups of queries: by question word, by ranges of numbers, and by the source's own columns."""

import math
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
NO_VALUE = "(none)"
MOST_VALUES = 12  # of a column that is grouped by its values


class Dimension(NamedTuple):
    """The group of each query [Q], and the groups in the order they are shown."""

    labels: Sequence[str]
    order: Sequence[str]


def question_word(text: str) -> str:
    """The first of who, what, when, where, which, why, how; "yes or no" for a query that begins with an auxiliary; else "none"."""
    words = [word.casefold() for word in WORD.findall(text)]
    question = next((ASKING[word] for word in words if word in ASKING), None)
    return question or ("yes or no" if words and AUXILIARY.match(words[0]) else "none")


def by_value(values: Sequence[str]) -> Dimension:
    """A group for each value, the most frequent first."""
    return Dimension(values, [value for value, _ in sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))])


def by_range(values: Sequence[float], bins: int) -> Dimension:
    """`bins` groups, or fewer, of about as many values each, named by their range ("3 to 5"); equal values are in one group."""
    numbers = np.asarray(values, dtype=np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, bins + 1) / bins, method="inverted_cdf"))
    places = np.searchsorted(edges, numbers)
    ends = [(members.min(), members.max()) for members in (numbers[places == place] for place in range(len(edges)))]
    names = next(names for digits in range(3, 18) if len(set(names := [_span(*end, digits) for end in ends])) == len(ends))
    return Dimension([names[place] for place in places], names)


def _span(low: float, high: float, digits: int) -> str:
    first, last = (f"{value:.0f}" if value == int(value) else f"{value:.{digits}g}" for value in (low, high))
    return first if first == last else f"{first} to {last}"


def by_column(values: Sequence[str], bins: int) -> Dimension | None:
    """A user's column, "" where a query has no value: by value, or by range if there are many and all are numbers; else None.

    An infinite number or NaN (as pandas writes a missing one) counts as no value.
    """
    if len(set(values)) <= MOST_VALUES:
        return by_value([value or NO_VALUE for value in values])
    try:
        numbers = [float(value or "nan") for value in values]
    except ValueError:
        return None
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return None
    labels, order = by_range(finite, bins)
    remaining_labels = iter(labels)
    missing = [NO_VALUE] * (len(finite) < len(numbers))
    return Dimension([next(remaining_labels) if math.isfinite(number) else NO_VALUE for number in numbers], [*order, *missing])


def read_columns(path: Path) -> dict[str, dict[str, str]]:
    """The source's own columns: values by name and query; empty if it has none."""
    columns: dict[str, dict[str, str]] = {}
    if path.exists():
        table = read_table(path, COLUMNS)
        for query, name, value in zip(*(table[name].to_pylist() for name in COLUMNS.names), strict=True):
            columns.setdefault(name, {})[query] = value
    return columns
