"""Scores of given (query, document) pairs by stored vectors, where no search is needed."""

import numpy as np

from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints


def embedded_scores(queries_QD: Floats, embeddings: Embeddings, query: Ints, document: Ints) -> Floats:
    """Score of each pair, float32 [P]: the best of the document's passages. Shards pass by one at a time. UserError if widths differ."""
    embeddings.refuse_other_width(queries_QD.shape[1])
    owners = embeddings.owners()
    first, last = np.searchsorted(owners, document, "left"), np.searchsorted(owners, document, "right")
    scores = np.full(len(query), -np.inf, dtype=np.float32)
    for start, block in embeddings.blocks():
        for passage in range(int((last - first).max(initial=0))):
            row = first + passage - start
            places = np.flatnonzero((row >= 0) & (row < len(block)) & (first + passage < last))
            pair_scores = np.einsum("pd,pd->p", queries_QD[query[places]], np.asarray(block[row[places]], dtype=np.float32))
            scores[places] = np.maximum(scores[places], pair_scores)
    return scores
