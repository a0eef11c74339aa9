"""Pairwise errors: for each relevant document, the number of irrelevant documents ranked above it, over the whole corpus.

STAR and ADORE (arXiv:2104.08051), Eq. 5 and 6, Table 1, Fig. 3: random negatives minimize all errors, hard ones those in the top K.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints

ROWS = 4096  # passages scored at a time
PAIRS = 1024  # relevant pairs compared with them at a time
ROUNDING = 1e-5  # scores this close are equal: two products of the same vectors may differ in their last bits
EDGES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000)  # lower edges of the histogram's bins


def document_scores(queries_QD: Floats, embeddings: Embeddings) -> Iterator[tuple[Ints, Floats]]:
    """Yield the ordinals [U] and scores [Q, U] of all documents, in order. A document scores as its best passage."""
    owners = embeddings.owners()
    last: tuple[Ints, Floats] | None = None  # a document that may have more passages in the next rows
    for start, block in embeddings.blocks():
        for first in range(0, len(block), ROWS):
            rows = np.asarray(block[first : first + ROWS], dtype=np.float32)
            row_owners = owners[start + first : start + first + len(rows)].astype(np.int64)
            begins = np.flatnonzero(np.diff(row_owners, prepend=-1))
            docs, best = row_owners[begins], np.maximum.reduceat(queries_QD @ rows.T, begins, axis=1)
            if last is not None and last[0][0] == docs[0]:
                best[:, 0] = np.maximum(best[:, 0], last[1][:, 0])
            elif last is not None:
                yield last
            last = docs[-1:], best[:, -1:]
            yield docs[:-1], best[:, :-1]
    if last is not None:
        yield last


def errors_of(queries_QD: Floats, embeddings: Embeddings, query: Ints, document: Ints) -> Ints:
    """For each relevant pair [P], the number of documents that are not relevant to the query and score higher. Ties do not count."""
    scores = embedded_scores(queries_QD, embeddings, query, document)
    errors = np.zeros(len(query), dtype=np.int64)
    for docs, scores_QU in document_scores(queries_QD, embeddings):
        place = np.searchsorted(docs, document)
        in_block = (
            (place < len(docs)) & (docs[np.minimum(place, len(docs) - 1)] == document) if len(docs) else np.zeros(len(query), dtype=bool)
        )
        scores_QU[query[in_block], place[in_block]] = -np.inf  # relevant documents are no errors
        for first in range(0, len(query), PAIRS):
            pairs = slice(first, first + PAIRS)
            limit = scores[pairs] + ROUNDING * np.maximum(1, np.abs(scores[pairs]))
            errors[pairs] += (scores_QU[query[pairs]] > limit[:, None]).sum(1)
    return errors


def summary(errors: Ints, query: Ints, depth: int) -> dict[str, object]:
    """Means per query: of all errors, and of errors capped at `depth` per relevant document; and Fig. 3's histogram over queries."""
    per_query: npt.NDArray[np.float64] = np.bincount(query, weights=errors)[np.unique(query)].astype(np.float64)
    bounded = np.bincount(query, weights=np.minimum(errors, depth))[np.unique(query)]
    places = np.searchsorted(EDGES, per_query, side="right") - 1
    bins = [
        {"from": EDGES[place], "queries": float(np.mean(places == place)), "errors": _share(per_query, places == place)}
        for place in np.unique(places).tolist()
    ]
    return {"total": float(per_query.mean()), "top": float(bounded.mean()), "depth": depth, "histogram": bins}


def _share(values: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_]) -> float:
    total = float(values.sum())
    return float(values[mask].sum()) / total if total else 0.0
