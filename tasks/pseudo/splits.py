"""Put the kept queries into splits, and count them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.pseudo.making import Candidate, plain


class Split(NamedTuple):
    """A split in the corpus's schemas, and the kind of each query."""

    queries: pa.Table
    qrels: pa.Table
    kinds: list[str]


def count_kept(made: Sequence[Candidate], lexical: set[str], dense: set[str]) -> dict[str, dict[str, int]]:
    """For each kind, the numbers of queries made, kept by BM25, kept by the encoder, and kept by both."""
    judged = {"made": {one.id for one in made}, "bm25": lexical, "encoder": dense, "both": lexical & dense}
    counts = {name: Counter(one.kind for one in made if one.id in ids) for name, ids in judged.items()}
    return {kind: {name: count[kind] for name, count in counts.items()} for kind in dict.fromkeys(one.kind for one in made)}


def make_split(kept: Iterable[Candidate], barred: set[str]) -> tuple[Split, int, int]:
    """Make a split of `kept`. Equal texts (see `plain`) become one query, with each of their documents relevant.

    Texts in `barred` are left out. Also return how many queries were merged into an earlier one, and how many were left out.
    """
    groups: dict[str, list[Candidate]] = {}
    left_out = 0
    for one in kept:
        if plain(one.text) in barred:
            left_out += 1
        else:
            groups.setdefault(plain(one.text), []).append(one)
    firsts = [group[0] for group in groups.values()]
    pairs = [(group[0].id, doc) for group in groups.values() for doc in dict.fromkeys(one.doc for one in group)]
    queries = pa.table([[one.id for one in firsts], [one.text for one in firsts], [[] for _ in firsts]], schema=QUERIES)
    qrels = pa.table([[query for query, _ in pairs], [doc for _, doc in pairs], [1] * len(pairs)], schema=QRELS)
    merged = sum(map(len, groups.values())) - len(groups)
    return Split(queries, qrels, [one.kind for one in firsts]), merged, left_out
