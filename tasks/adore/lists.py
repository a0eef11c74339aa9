"""The ranked list of every query of a step: the retrieved documents, and how positives that were not retrieved are handled.

B queries, N documents retrieved, L positions in a list (-1 past its end), R rows (passages), O documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints

Bools = npt.NDArray[np.bool_]
BestRows = Callable[[Sequence[Ints]], list[Ints]]  # from documents of each query of a batch to the rows of their best passages
Missing = Literal["drhard", "jpq", "ltre"]


@dataclass(frozen=True)
class Lists:
    """One list per query. `rows`: the passage that represents each document."""

    rows: Ints  # [B, L]
    grades: Ints  # [B, L]; 0: not known to be relevant

    @property
    def positive(self) -> Bools:
        positive: Bools = self.grades > 0
        return positive

    @property
    def valid(self) -> Bools:
        valid: Bools = self.rows >= 0
        return valid


def best_documents(scores_BK: Floats, rows_BK: Ints, owners: npt.NDArray[np.int32], place: Ints, depth: int) -> Ints:
    """The `depth` best documents of each query, each as the row of its best passage: int64 [B, depth], -1 where fewer were found.

    The order is that of tasks.core.retrieval.ranked: by score, ties by descending document id. `place` is the result of id_order.
    """
    best = np.full((len(rows_BK), depth), -1, dtype=np.int64)
    for b, (scores, rows) in enumerate(zip(scores_BK, rows_BK, strict=True)):
        scores, rows = scores[rows >= 0], rows[rows >= 0]
        documents = owners[rows]
        order = np.lexsort((-place[documents], -scores))
        first = np.sort(np.unique(documents[order], return_index=True)[1])[:depth]
        best[b, : len(first)] = rows[order][first]
    return best


def complete_lists(
    found_BN: Ints,
    owners: npt.NDArray[np.int32],
    positives: Sequence[Ints],
    known: Sequence[Ints],
    best_rows: BestRows,
    missing: Missing,
    rng: np.random.Generator,
    grades: Sequence[Floats],
) -> Lists:
    """Label the retrieved lists, and handle positives that were not retrieved as `missing` says (params.QuerySide).

    `known`: `positives` and the documents with their texts, which get the same labels. `grades`: the grades of `known`.
    """
    retrieved: list[tuple[Ints, Ints]] = []
    additions: list[Ints] = []
    for b, found in enumerate(found_BN):
        rows = found[found >= 0]
        documents = owners[rows].astype(np.int64)
        labels = look_up_grades(documents, known[b], grades[b])
        absent = np.setdiff1d(positives[b], documents)
        if not len(absent) or (labels.any() and missing != "jpq"):
            added = absent[:0]
        elif missing == "ltre":
            added = rng.choice(absent, 1)
            if len(rows) == found_BN.shape[1]:  # the positive takes the last rank of a full list
                rows, labels = rows[:-1], labels[:-1]
        else:
            added = absent
        retrieved.append((rows, np.concatenate([labels, look_up_grades(added, known[b], grades[b])])))
        additions.append(added)
    return pad_lists([(np.concatenate([rows, best]), labels) for (rows, labels), best in zip(retrieved, best_rows(additions), strict=True)])


def look_up_grades(documents: Ints, known: Ints, grades: Floats) -> Ints:
    """The grade of each document [L], 0 if it is not among `known` [K]. `grades` [K]: the grades of `known`."""
    order = np.argsort(known, kind="stable")
    place = order[np.searchsorted(known, documents, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[place] == documents, grades[place].astype(np.int64), 0)


def unranked_lists(
    positives: Sequence[Ints],
    known: Sequence[Ints],
    negatives: Sequence[Ints],
    best_rows: BestRows,
    grades: Sequence[Floats],
) -> Lists:
    """Lists without ranks: all positives of a query, then its negatives, each once.

    Negatives that are `known` (positives, and documents with their texts) are left out.
    """
    unknown = [np.setdiff1d(documents, excluded) for documents, excluded in zip(negatives, known, strict=True)]
    lists = [np.concatenate(parts) for parts in zip(positives, unknown, strict=True)]
    labels = [look_up_grades(documents, ids, known_grades) for documents, ids, known_grades in zip(lists, known, grades, strict=True)]
    return pad_lists(list(zip(best_rows(lists), labels, strict=True)))


def pad_lists(lists: Sequence[tuple[Ints, Ints]]) -> Lists:
    """Pad lists of (rows, grades) to one length: two int64 arrays [B, L], with row -1 and grade 0 as padding."""
    length = max(1, *(len(rows) for rows, _ in lists))
    rows_BL, grades_BL = np.full((len(lists), length), -1, dtype=np.int64), np.zeros((len(lists), length), dtype=np.int64)
    for b, (rows, grades) in enumerate(lists):
        rows_BL[b, : len(rows)], grades_BL[b, : len(rows)] = rows, grades
    return Lists(rows_BL, grades_BL)


def search_metrics(found_BN: Ints, owners: npt.NDArray[np.int32], positives: Sequence[Ints], cut: int = 10) -> dict[str, float]:
    """MRR and hit rate at `cut` of a step's search, as DRhard logs them, and recall of the whole lists. All are means over queries."""
    ranks, hits, recalls = [], [], []
    for found, query_positives in zip(found_BN, positives, strict=True):
        relevant = np.isin(owners[found[found >= 0]], query_positives)
        places = np.flatnonzero(relevant[:cut])
        ranks.append(1 / (places[0] + 1) if len(places) else 0.0)
        hits.append(float(len(places) > 0))
        recalls.append(relevant.sum() / len(query_positives))
    return {f"mrr_{cut}": float(np.mean(ranks)), f"hit_{cut}": float(np.mean(hits)), "recall": float(np.mean(recalls))}


def overlap(lists: Lists, found_BN: Ints, owners: npt.NDArray[np.int32], known: Sequence[Ints]) -> float:
    """Of the documents that a full search finds, apart from `known` ones: the fraction that the step trains on as negatives.

    Mean over queries: STAR (arXiv:2104.08051), Fig. 4a; LTRe (arXiv:2010.10469), Fig. 3d. Queries whose retrieved documents are all
    `known` are excluded; 1 if all queries are.
    """
    shares = []
    for rows, positive, found, query_known in zip(lists.rows, lists.positive, found_BN, known, strict=True):
        dynamic = np.setdiff1d(owners[found[found >= 0]], query_known)
        if len(dynamic):
            shares.append(np.isin(dynamic, owners[rows[(rows >= 0) & ~positive]]).mean())
    return float(np.mean(shares)) if shares else 1.0
