"""The overlap of two ranked lists (ANCE, Fig. 3 and Table 6; LTRe, Fig. 3c, 3d; STAR and ADORE, Fig. 4a)."""

from collections.abc import Mapping, Sequence

Lists = Mapping[str, Sequence[str]]  # query: documents, best first


def overlap(first: Lists, second: Lists, depth: int) -> float | None:
    """The number of documents in the top `depth` of both lists, divided by `depth`; mean over the queries that both have.

    LTRe's definition: .1 if 20 of 200 are in both. None if no query is in both.
    """
    common = [query for query in first if query in second]
    shared = [len(set(first[query][:depth]) & set(second[query][:depth])) / depth for query in common]
    return sum(shared) / len(shared) if shared else None
