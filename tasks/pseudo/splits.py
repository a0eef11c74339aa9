"""Put the kept queries into splits, and count them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.core.text.plain import plain
from tasks.pseudo.making import Candidate


class Split(NamedTuple):
    """A split in the corpus's schemas, and the kind of each query."""

    queries: pa.Table
    qrels: pa.Table
    kinds: list[str]


def count_kept(queries: Sequence[Candidate], lexical: set[str], dense: set[str]) -> dict[str, dict[str, int]]:
    """For each kind, the numbers of queries made, kept by BM25, kept by the encoder, and kept by both."""
    judged = {"made": {query.id for query in queries}, "bm25": lexical, "encoder": dense, "both": lexical & dense}
    counts = {name: Counter(query.kind for query in queries if query.id in ids) for name, ids in judged.items()}
    return {kind: {name: count[kind] for name, count in counts.items()} for kind in dict.fromkeys(query.kind for query in queries)}


def make_split(candidates: Iterable[Candidate], excluded: set[str]) -> tuple[Split, int, int]:
    """Make a split of `candidates`. Equal texts (see `plain`) become one query, with each of their documents relevant.

    Texts in `excluded` are left out. Also return how many queries were merged into an earlier one, and how many were left out.
    """
    groups: dict[str, list[Candidate]] = {}
    left_out = 0
    for query in candidates:
        if plain(query.text) in excluded:
            left_out += 1
        else:
            groups.setdefault(plain(query.text), []).append(query)
    firsts = [group[0] for group in groups.values()]
    pairs = [(group[0].id, doc) for group in groups.values() for doc in dict.fromkeys(query.doc for query in group)]
    queries = pa.table([[query.id for query in firsts], [query.text for query in firsts], [[] for _ in firsts]], schema=QUERIES)
    qrels = pa.table([[query for query, _ in pairs], [doc for _, doc in pairs], [1] * len(pairs)], schema=QRELS)
    merged = sum(map(len, groups.values())) - len(groups)
    return Split(queries, qrels, [query.kind for query in firsts]), merged, left_out
