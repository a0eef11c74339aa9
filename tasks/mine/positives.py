"""Scores of known positives, as a search would find them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.ann.search import index_scores
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.parts import QuerySearch
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints, concat_ranges


@dataclass(frozen=True)
class Positives:
    """Known positives as (query, document) pairs, and the search that scores them."""

    search: QuerySearch
    query: Ints
    document: Ints

    def scores(self) -> Floats:
        """The score of each pair, [P], as the search would give it."""
        return self.search.parts.array("positives", self._scores)

    def _scores(self) -> Floats:
        search = self.search
        if search.index is None:
            return embedded_scores(search.vectors, search.opened, self.query, self.document)
        return best_passages(search.opened_index, search.vectors, self.query, self.document, search.owners)


def best_passages(index: Any, queries_QD: Floats, query: Ints, document: Ints, owners: npt.NDArray[np.int32]) -> Floats:
    """The score of each pair, float32 [P]: that of the document's best passage, with the vectors that a faiss index stores (decoded)."""
    first, count = np.searchsorted(owners, document.astype(owners.dtype), "left"), np.bincount(owners)[document]
    pair = np.repeat(np.arange(len(query)), count)
    scores = np.full(len(query), -np.inf, dtype=np.float32)
    np.maximum.at(scores, pair, index_scores(index, queries_QD, query[pair], concat_ranges(first, count)))
    return scores
