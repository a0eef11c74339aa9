"""Fusion: two ranked lists of a query as one. Pure functions over a query's documents; U is the number in either list.

linear   w a + (1 - w) b over scores that are min-max normalized by query and list (Lee: Analyses of Multiple Evidence Combination,
         SIGIR 1997; as a convex combination: Bruch, Gai, Ingber: An Analysis of Fusion Functions for Hybrid Retrieval, TOIS 2023,
         arXiv:2210.11934). A missing document has the list's minimum, 0.
zscore   the same over standard scores (Montague, Aslam: Relevance Score Normalization for Metasearch, CIKM 2001: ZMUV). A missing
         document has 0, the list's mean, as in ranx (Bassani, Romelli: ranx.fuse, CIKM 2022).
rrf      1 / (k + rank in a) + 1 / (k + rank in b), ranks from 1 (Cormack, Clarke, Buettcher: Reciprocal Rank Fusion Outperforms
         Condorcet and Individual Rank Learning Methods, SIGIR 2009, where k is 60). A missing document adds 0.

A list whose scores are all equal, such as a list of one document, is all 1 when it is normalized, as in OpenSearch: each document is the
list's best. (ranx gives 0, so the only document that BM25 matches would count no more than one that it does not match.) Fused scores are
rounded to float32 as a run holds them, and ties are ordered by descending id, so trec_eval finds the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Method = Literal["linear", "zscore", "rrf"]

WEIGHTS = tuple(step / 20 for step in range(21))
GRIDS: Mapping[Method, tuple[float, ...]] = {"linear": WEIGHTS, "zscore": WEIGHTS, "rrf": (1, 5, 10, 20, 40, 60, 100)}
DEPTH = 1000  # ranks of a fused list, where params.yaml does not say
UNTUNED: Mapping[Method, float] = {"linear": 0.5, "zscore": 0.5, "rrf": 60}  # where there is no dev to choose on
NAMES: Mapping[Method, str] = {"linear": "weight", "zscore": "weight", "rrf": "k"}  # what is chosen


@dataclass(frozen=True)
class Ranked:
    """A query's documents in one system's list, best first, and their scores [N], all finite."""

    documents: Sequence[str] = ()
    scores: Floats | Sequence[float] = ()


@dataclass(frozen=True)
class Pair:
    """The documents of either list [U], by descending id, and their normalized scores, or (rrf) ranks, in each list [U].

    A document that a list lacks has the score 0 there, or the rank infinity.
    """

    method: Method
    documents: Sequence[str]
    first: Floats
    second: Floats


def min_max(scores: Floats) -> Floats:
    """(s - min) / (max - min) of each of `scores` [N]; all 1 where they are equal."""
    if not len(scores):
        return scores
    low, high = scores.min(), scores.max()
    normalized: Floats = (scores - low) / (high - low) if high > low else np.ones(len(scores))
    return normalized


def z_scores(scores: Floats) -> Floats:
    """(s - mean) / standard deviation (of the population) of each of `scores` [N]; all 1 where they are equal."""
    if not len(scores) or scores.min() == scores.max():
        return np.ones(len(scores))
    standard: Floats = (scores - scores.mean()) / scores.std()
    return standard


def pair(first: Ranked, second: Ranked, method: Method) -> Pair:
    """Two lists of one query, over the documents of either."""
    documents = sorted({*first.documents, *second.documents}, reverse=True)
    place = {document: number for number, document in enumerate(documents)}
    missing = np.inf if method == "rrf" else 0.0

    def aligned(ranked: Ranked) -> Floats:
        values = np.full(len(documents), missing)
        values[[place[document] for document in ranked.documents]] = _evidence(ranked, method)
        return values

    return Pair(method, documents, aligned(first), aligned(second))


def _evidence(ranked: Ranked, method: Method) -> Floats:
    if method == "rrf":
        return np.arange(1, len(ranked.documents) + 1, dtype=np.float64)
    scores = np.asarray(ranked.scores, dtype=np.float64)
    return min_max(scores) if method == "linear" else z_scores(scores)


def fuse(lists: Pair, setting: float, depth: int) -> list[tuple[str, float]]:
    """The `depth` best documents of a pair and their fused scores, best first. `setting`: the weight of the first list, or k of rrf."""
    if lists.method == "rrf":
        scores = 1 / (setting + lists.first) + 1 / (setting + lists.second)
    else:
        scores = setting * lists.first + (1 - setting) * lists.second
    rounded = scores.astype(np.float32)
    order = np.argsort(-rounded, kind="stable")[:depth]  # documents are by descending id, so ties are too
    return [(lists.documents[place], float(rounded[place])) for place in order.tolist()]
