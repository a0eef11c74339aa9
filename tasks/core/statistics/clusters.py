"""Queries that share a relevant document: they rise and fall together, so a mean over them says less than one over as many others.

A group is a connected component of queries and relevant documents; groups share nothing, and are taken to be independent draws. The error
of a mean over queries is then that of the sums of groups (Liang, Zeger: Longitudinal Data Analysis Using Generalized Linear Models,
Biometrika 73, 1986; Cameron, Miller: A Practitioner's Guide to Cluster-Robust Inference, Journal of Human Resources 50, 2015). `by_group`
expresses it as one value per group, so every test of a mean of independent values also works over groups.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.core.statistics.judged import judged_queries
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


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


def by_group(values: Floats, numbers: Numbers) -> Floats:
    """One value for each group [G] of `values` [Q]: mean + (sum of the group's deviations from it) * G / Q.

    Their mean is that of `values`, and their standard deviation (G - 1 in the denominator) over sqrt(G) its cluster-robust standard error;
    `values` themselves, bit for bit, where each query is a group, numbered in order.
    """
    sizes = np.bincount(numbers)
    if len(sizes) == len(values):
        return values[np.argsort(numbers)]
    mean = values.mean()
    adjusted: Floats = mean + np.bincount(numbers, values - mean) * len(sizes) / len(values)
    return adjusted


def describe_groups(queries: int, groups: int, effect: float) -> str:
    """`2,762 queries are 576 groups that share relevant documents, which say as much as 1,726 independent ones (design effect 1.6)`.

    It never claims more queries than there are: an effect below 1 is usually an error of the estimate, not a gain.
    """
    if queries == 1:
        return "there is one query, so nothing can be tested"
    if groups == 1:
        return f"all {queries:,} queries share relevant documents, so nothing can be tested unless report.draws is queries"
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
    group_values, variance = by_group(values, numbers), float(values.var(ddof=1)) if len(values) > 1 else 0.0
    if len(group_values) in (1, len(values)) or not variance:
        return 1.0
    return float(group_values.var(ddof=1)) / len(group_values) * len(values) / variance
