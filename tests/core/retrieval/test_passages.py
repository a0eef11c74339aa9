"""The documents of the best passages: those that sorting all passages gives, however passages are spread over documents."""

from itertools import pairwise

import numpy as np
import pytest

from tasks.core.retrieval import passages
from tasks.core.retrieval.passages import best_passages, first_of_each, rows_at_first, rows_needed
from tasks.core.retrieval.ranked import MARGIN


class Searched:
    """A search by sorting that records how many queries it was asked, and how many rows for each."""

    def __init__(self, vectors: np.ndarray, most: int = 10**9) -> None:
        self.vectors, self.most, self.asked = vectors, most, list[tuple[int, int]]()

    def __call__(self, queries: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append((len(queries), rows))
        scores = (queries @ self.vectors.T).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : min(rows + MARGIN, len(self.vectors))]
        results = np.take_along_axis(scores, order, 1), order.astype(np.int64)
        results[0][:, self.most :], results[1][:, self.most :] = -np.inf, -1
        return results


def reference_rows(queries: np.ndarray, vectors: np.ndarray, owners: np.ndarray, keep: int) -> list[list[int]]:
    """The best row of each of the first `keep` documents, of every query."""
    results = []
    for scores in queries @ vectors.T:
        best: dict[int, int] = {}
        for row in np.argsort(-scores, kind="stable").tolist():
            best.setdefault(int(owners[row]), row)
        results.append(list(best.values())[:keep])
    return results


@pytest.mark.parametrize("documents", [1, 3, 10, 39, 40, 70])
@pytest.mark.parametrize("is_crowded", [False, True])
def test_sorting_all_passages_gives_the_same_documents(documents: int, is_crowded: bool) -> None:
    rng = np.random.default_rng(documents)
    owners = np.repeat(np.arange(40, dtype=np.int32), rng.integers(1, 30, size=40))
    vectors = rng.normal(size=(len(owners), 8))
    if is_crowded:  # all passages of some documents before any of others
        vectors = rng.normal(size=(40, 8))[owners] * 5 + 0.01 * vectors
    queries = rng.normal(size=(25, 8))
    search = Searched(vectors)
    scores, rows = best_passages(search, queries, owners, documents)
    assert rows.shape == scores.shape == (25, documents + MARGIN) and rows.dtype == np.int64 and scores.dtype == np.float32
    for q, expected in enumerate(reference_rows(queries, vectors, owners, documents + MARGIN)):
        top_documents = rows[q][rows[q] >= 0].tolist()
        assert len(top_documents) >= min(documents, 40) and top_documents == expected[: len(top_documents)]
        np.testing.assert_allclose(scores[q, : len(top_documents)], (queries[q] @ vectors.T)[top_documents], rtol=1e-5)
        assert (scores[q, len(top_documents) :] == -np.inf).all()
    assert max(count * rows_wanted for count, rows_wanted in search.asked) == 25 * search.asked[0][1], (
        "no search has more results than the first"
    )
    assert search.asked[0] == (25, rows_at_first(documents, owners))
    levels = sorted({rows_wanted for _, rows_wanted in search.asked})
    order = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")
    for rows_before, rows_wanted in pairwise(levels):  # again for those queries whose rows had too few documents, and for no other
        short_queries = [q for q in range(25) if len(set(owners[order[q, :rows_before]].tolist())) < min(documents, 40)]
        assert sum(count for count, rows_asked in search.asked if rows_asked == rows_wanted) == len(short_queries)
    assert len(search.asked) == 1 or is_crowded or documents in (39, 40, 70)
    if is_crowded and documents == 10:
        assert len(search.asked) > 1


def test_queries_that_are_searched_for_again_are_the_same_ones_in_any_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passages, "QUERY_BLOCK", 8)
    rng = np.random.default_rng(3)
    owners = np.repeat(np.arange(40, dtype=np.int32), 20)
    vectors, queries = rng.normal(size=(40, 8))[owners] * 5 + rng.normal(size=(800, 8)), rng.normal(size=(24, 8))
    whole_search = Searched(vectors)
    best_passages(whole_search, queries, owners, 10)
    searches = []
    for start in range(0, 24, 8):
        part_search = Searched(vectors)
        best_passages(part_search, queries[start : start + 8], owners, 10)
        searches += part_search.asked[1:]
    assert sorted(whole_search.asked[1:]) == sorted(searches) and len(searches) > 3


def test_one_passage_each_is_one_search_whose_results_are_returned() -> None:
    vectors, queries = np.random.default_rng(0).normal(size=(30, 4)), np.random.default_rng(1).normal(size=(3, 4))
    for documents, rows in ((5, 5), (50, 30)):
        search = Searched(vectors)
        results = best_passages(search, queries, np.arange(30, dtype=np.int32), documents)
        assert search.asked == [(3, rows)]
        np.testing.assert_array_equal(results[1], search(queries, rows)[1])


def test_an_index_that_finds_no_more_is_not_asked_again() -> None:
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(20, dtype=np.int32), 10)
    search = Searched(rng.normal(size=(200, 4)), most=7)
    _, rows = best_passages(search, rng.normal(size=(6, 4)), owners, 10)
    assert search.asked == [(6, 40)]
    assert all(0 < (row >= 0).sum() <= 7 for row in rows)


def test_documents_in_the_margin_do_not_count() -> None:
    """They are there for ties at the last rank, and may be fewer than their score deserves."""
    rows = np.array([[0, 1, 2, 5]])
    owners = np.array([0, 0, 0, 0, 0, 1], dtype=np.int32)
    *_, complete = first_of_each(np.array([[4.0, 3, 2, 1]], dtype=np.float32), rows, owners, 4, searched=3, wanted=2)
    assert not complete[0]
    scores, documents, complete = first_of_each(np.array([[4.0, 3, 2, 1]], dtype=np.float32), rows, owners, 3, searched=4, wanted=2)
    assert complete[0] and documents.tolist() == [[0, 5, -1]] and scores.tolist() == [[4, 1, -np.inf]]
    assert first_of_each(np.array([[4.0, 3, 2, 1]], dtype=np.float32), rows, owners, 2, searched=4, wanted=2)[1].tolist() == [[0, 5]]


def test_as_many_rows_as_the_longest_documents_have() -> None:
    owners = np.array([0, 0, 1, 1, 1, 2], dtype=np.int32)
    assert rows_needed(10, owners) == 30 and rows_at_first(10, owners) == 30
    assert rows_needed(10, np.arange(4, dtype=np.int32)) == rows_at_first(10, np.arange(4, dtype=np.int32)) == 10
    assert rows_needed(10, np.empty(0, dtype=np.int32)) == 10
    assert rows_at_first(10, np.repeat(np.arange(100, dtype=np.int32), 9)) == 40
