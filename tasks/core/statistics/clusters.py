"""Queries that share a relevant document: they rise and fall together, so a mean over them says less than one over as many others.

A group is a connected component of queries and relevant documents; groups share nothing, and are taken to be independent draws. The error
of a mean over queries is then that of the sums of groups (Liang, Zeger: Longitudinal Data Analysis Using Generalized Linear Models,
Biometrika 73, 1986; Cameron, Miller: A Practitioner's Guide to Cluster-Robust Inference, Journal of Human Resources 50, 2015).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.statistics.judged import judged_queries
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
LARGEST = 0.8  # share of the queries that one group may have in a test
SAME = 1e-12  # relative to the largest value: rounding


def connected(relevant: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The group of each query of pairs (query, relevant document), named after the least of its queries; union-find by document."""
    parent: dict[str, str] = {}
    first: dict[str, str] = {}  # query by document

    def root(query: str) -> str:
        while parent.setdefault(query, query) != query:
            parent[query] = parent[parent[query]]
            query = parent[query]
        return query

    for query, document in relevant:
        least, other = sorted((root(query), root(first.setdefault(document, query))))
        parent[other] = least
    return {query: root(query) for query in parent}


def read_groups(qrels: Path) -> dict[str, str]:
    """The group of each query of a table of judgments, by documents of any positive grade; empty if there is no table.

    Queries of a click log join no groups, unless there are no others.
    """
    if not qrels.exists():
        return {}
    table = read_table(qrels, QRELS)
    judged = {*judged_queries(table["query"].unique().to_pylist())}
    graded = zip(*(table[column].to_pylist() for column in ("query", "doc", "grade")), strict=True)
    return connected((query, doc) for query, doc, grade in graded if grade > 0 and query in judged)


def group_numbers(queries: Sequence[str], groups: Mapping[str, str]) -> Numbers:
    """A number for the group of each query [Q], from 0 in the order of their first queries; a query without a group is one of its own."""
    numbers: dict[tuple[bool, str], int] = {}
    names = ((query in groups, groups.get(query, query)) for query in queries)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Mean:
    """The mean of values [Q] over groups, and its standard error. `error`: 0 if no group deviates from the mean but by rounding.

    `groups`: how many there are. `effective`: how many of one size would say as much, Q^2 / sum of n^2 for groups of n (Kish 1965), so G if
    all have one size. `testable`: False if one group has more than LARGEST of the queries: then nothing is known of how groups vary.
    """

    mean: float
    error: float
    groups: int
    effective: float
    testable: bool


def mean_over_groups(values: Floats, numbers: Numbers) -> Mean:
    """The mean of `values` [Q], with the jackknife's error over groups that are left out in turn, for groups of any sizes:

        e^2 = (G - 1) / G * sum over groups of (s / (Q - n))^2        s: sum of a group's deviations from the mean; n: its size

    It is the usual cluster-robust error if all groups have one size, and the usual standard error if each query is a group. That error is
    far too small if one group has most of the queries, whose mean is then that group's (Bell, McCaffrey: Bias Reduction in Standard Errors
    for Linear Regression with Multi-Stage Samples, Survey Methodology 28, 2002; MacKinnon, Nielsen, Webb: Cluster-Robust Inference, Journal
    of Econometrics 232, 2023). A t-test with it has `effective` - 1 degrees of freedom.
    """
    sizes, count = np.bincount(numbers), len(values)
    mean = float(values.mean()) if count else 0.0
    if not count or sizes.max() > LARGEST * count:
        return Mean(mean, 0.0, len(sizes), 1.0, False)
    sums = np.bincount(numbers, values - mean)
    deviations = sums / sizes.mean()
    error = 0.0
    if np.ptp(deviations) > SAME * np.abs(values).max():
        error = math.sqrt((len(sizes) - 1) / len(sizes) * float(np.square(sums / (count - sizes)).sum()))
    return Mean(mean, error, len(sizes), count**2 / float(np.square(sizes).sum()), True)


def describe_groups(queries: int, groups: int, effect: float, *, largest: int) -> str:
    """`2,762 queries are 576 groups that share relevant documents, which say as much as 1,726 independent ones (design effect 1.6)`.

    It never claims more queries than there are: an effect below 1 is usually an error of the estimate, not a gain. `largest`: queries
    of the largest group.
    """
    if queries == 1:
        return "there is one query, so nothing can be tested"
    if groups == 1:
        return f"all {queries:,} queries share relevant documents, so nothing can be tested unless report.draws is queries"
    if largest > LARGEST * queries:
        share = f"{largest:,} of {queries:,} queries share relevant documents, and the others are {groups - 1:,} groups"
        return f"{share}, so there is no interval, and only a permutation test (report.test) gives a p-value"
    below = "; below 1 by chance, as a rule" if round(effect, 1) < 1 else ""
    return (
        f"{queries:,} queries are {groups:,} groups that share relevant documents, which say as much as {queries / max(1.0, effect):,.0f} "
        f"independent ones (design effect {effect:.1f}{below})"
    )


def design_effect(values: Floats, numbers: Numbers) -> float:
    """The variance of the mean of `values` [Q] over what it would be if all were independent (Kish: Survey Sampling, 1965).

    Q divided by it is the effective number of queries. It is an estimate, so it may be below 1, or 0. It is 1 if each query is a group of
    its own, or if it cannot be estimated.
    """
    estimate, variance = mean_over_groups(values, numbers), float(values.var(ddof=1)) if len(values) > 1 else 0.0
    if not estimate.testable or estimate.groups == len(values) or not variance:
        return 1.0
    return estimate.error**2 * len(values) / variance
