"""How much two ranked lists have in common (ANCE, Fig. 3 and Table 6; LTRe, Fig. 3c, 3d; STAR and ADORE, Fig. 4a)."""

from collections.abc import Mapping, Sequence

Lists = Mapping[str, Sequence[str]]  # query: documents, best first


def overlap(first: Lists, second: Lists, depth: int) -> float | None:
    """The mean, over the queries of both, of the number of documents in the top `depth` of both, divided by `depth`.

    LTRe's definition: .1 if 20 of 200 are in both. None without a common query.
    """
    common = [query for query in first if query in second]
    shared = [len(set(first[query][:depth]) & set(second[query][:depth])) / depth for query in common]
    return sum(shared) / len(shared) if shared else None
