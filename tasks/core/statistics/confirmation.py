"""Which dev queries choose among systems, and which confirm the choice.

A digest of the query's id decides, so a query does not change sides when others are added or removed. Queries that share a relevant
document (tasks.core.statistics.clusters) are all on one side, that of the least of them: a judgment that joins two groups may move one.
Queries of a click log neither choose nor confirm, and join no groups (tasks.core.statistics.judged).

A system looks better than it is on the queries that it was chosen on (Cawley, Talbot: On Over-fitting in Model Selection and Subsequent
Selection Bias in Performance Evaluation, JMLR 11, 2010); on other queries of the same kind it does not.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

ONE_IN = 5  # one query in five chooses; the others are left to confirm


def is_selection_query(query: str, groups: Mapping[str, str]) -> bool:
    """Whether a query is one of the few on which systems, and weights of fusions, are chosen; `groups`: of clusters.connected."""
    return _place(groups.get(query, query)) % ONE_IN == 0


def confirmation_queries(queries: Iterable[str], groups: Mapping[str, str]) -> list[str]:
    """The queries that do not choose, `shuffled`."""
    return shuffled((query for query in queries if not is_selection_query(query, groups)), groups)


def shuffled(queries: Iterable[str], groups: Mapping[str, str]) -> list[str]:
    """`queries` sorted by the digests of their groups' names, then of their own: a fixed order that depends on neither text nor group size.

    By the queries' own digests alone, large groups would come first, as each has the place of its first query.
    """
    return sorted(queries, key=lambda query: (_place(groups.get(query, query)), _place(query), query))


def _place(query: str) -> int:
    return int.from_bytes(sha256(query.encode("utf-8", "surrogatepass")).digest()[:8])
