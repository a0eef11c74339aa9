"""The rarity of a query's words, and the difference of two systems in each group of queries.

Rarity is the mean idf of a query's distinct terms, as BM25 weighs them (log(1 + (N - n + 0.5) / (n + 0.5)), where n of N documents have the
term). Dense and lexical retrieval are known to differ by the rarity and the length of queries (Sciavolino et al.: Simple Entity-Centric
Questions Challenge Dense Retrievers, EMNLP 2021, arXiv:2109.08535).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.core.statistics.clusters import Numbers
from tasks.core.statistics.groups import Dimension
from tasks.core.statistics.paired_tests import holm, mean_interval, paired_t_test

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """The mean difference over the queries of one group, its 1 - alpha interval, and p, Holm-corrected over the groups of the split.

    Without a second system, `against` is None, and the interval is that of the model's mean. Groups below the minimum have no interval.
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


def rarity(terms: Iterable[str], frequencies: Mapping[str, int], documents: int) -> float:
    """The mean idf of the distinct `terms`; 0 without terms. `frequencies`: the number of documents with each term (0 if absent)."""
    idf = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in (frequencies.get(term, 0) for term in sorted(set(terms)))]
    return sum(idf) / len(idf) if idf else 0.0


def compare(
    dimensions: Mapping[str, Dimension], model: Floats, against: Floats | None, *, drawn: Numbers, least: int, alpha: float
) -> list[Group]:
    """The groups of every dimension that has more than one. Groups of at least `least` queries are one family of tests.

    Tests and intervals treat two queries as independent if their numbers in `drawn` [Q] differ.
    """
    members = [
        (dimension, name, np.asarray([label == name for label in labels]))
        for dimension, (labels, order) in dimensions.items()
        if len(order) > 1
        for name in order
    ]
    tests = {
        place: _test(model[rows], None if against is None else against[rows], np.unique(drawn[rows], return_inverse=True)[1], alpha)
        for place, (_, _, rows) in enumerate(members)
        if rows.sum() >= least
    }
    corrected = dict(zip(tests, holm([p for p, _, _ in tests.values()]), strict=True)) if against is not None else {}
    groups = []
    for place, (dimension, name, rows) in enumerate(members):
        mean, other = float(model[rows].mean()), None if against is None else float(against[rows].mean())
        _, low, high = tests.get(place, (None, None, None))
        groups.append(Group(dimension, name, int(rows.sum()), mean, other, mean - (other or 0.0), low, high, corrected.get(place)))
    return groups


def _test(model: Floats, against: Floats | None, drawn: Numbers, alpha: float) -> tuple[float, float | None, float | None]:
    return (1.0, *mean_interval(model, alpha, drawn)) if against is None else paired_t_test(model, against, alpha, drawn)
