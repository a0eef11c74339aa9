"""Lists of a step by hand, and against plain Python over random cases."""

import random

import numpy as np
import pytest

from tasks.adore.lists import Lists, best_documents, complete_lists, overlap, search_metrics, unranked_lists

OWNERS = np.arange(20, dtype=np.int32)  # a row is a document, where nothing else is said


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def ones(*known: np.ndarray) -> list[np.ndarray]:
    """Grades of 1 for the known documents of each query."""
    return [np.ones(len(documents), dtype=np.float32) for documents in known]


def as_is(documents: list[np.ndarray]) -> list[np.ndarray]:
    return documents


def complete(rows: list[int], positives: list[int], missing: str, seed: int = 0) -> list[tuple[int, bool]]:
    known, rng = [ints(*positives)], np.random.default_rng(seed)
    lists = complete_lists(ints(*rows)[None], OWNERS, known, known, as_is, missing, rng, ones(*known))  # type: ignore[arg-type]
    return [(row, mark) for row, mark in zip(lists.rows[0].tolist(), lists.positive[0].tolist(), strict=True) if row >= 0]


def mark_positives(rows: list[int], positives: set[int]) -> list[tuple[int, bool]]:
    return [(row, row in positives) for row in rows]


@pytest.mark.parametrize("missing", ["drhard", "jpq", "ltre"])
def test_lists_with_all_positives_are_unchanged(missing: str) -> None:
    assert complete([5, 3, 9, 1], [3, 1], missing) == mark_positives([5, 3, 9, 1], {3, 1})
    assert complete([5, 0, 9], [0], missing) == mark_positives([5, 0, 9], {0}), "row 0 is a row"
    assert Lists(ints(5, 0, -1)[None], ints(0, 1, 0)[None]).valid.tolist() == [[True, True, False]]


def test_missing_positives_when_one_of_two_is_retrieved() -> None:
    assert complete([5, 3, 9, 1], [3, 7], "drhard") == mark_positives([5, 3, 9, 1], {3})  # 7 is ignored
    assert complete([5, 3, 9, 1], [3, 7], "jpq") == mark_positives([5, 3, 9, 1, 7], {3, 7})  # 7 comes at rank 5
    assert complete([5, 3, 9, 1], [3, 7], "ltre") == mark_positives([5, 3, 9, 1], {3})


def test_missing_positives_when_none_is_retrieved() -> None:
    assert complete([5, 3, 9, 1], [7, 2], "drhard") == mark_positives([5, 3, 9, 1, 2, 7], {2, 7})
    assert complete([5, 3, 9, 1], [7, 2], "jpq") == mark_positives([5, 3, 9, 1, 2, 7], {2, 7})
    drawn = {tuple(complete([5, 3, 9, 1], [7, 2], "ltre", seed)) for seed in range(20)}
    assert drawn == {tuple(mark_positives([5, 3, 9, row], {row})) for row in (2, 7)}  # one of them, at the last rank


def test_lists_shorter_than_requested() -> None:
    assert complete([5, 3, -1, -1], [7], "drhard") == mark_positives([5, 3, 7], {7})
    assert complete([5, 3, -1, -1], [7], "ltre") == mark_positives([5, 3, 7], {7})  # nothing need go
    assert complete([-1, -1], [7, 8], "jpq") == mark_positives([7, 8], {7, 8})


def test_passages_are_judged_by_their_document() -> None:
    owners = np.array([0, 0, 1, 1, 1, 2], dtype=np.int32)
    known, rng = [ints(1)], np.random.default_rng(0)
    lists = complete_lists(
        ints(5, 1)[None],
        owners,
        known,
        known,
        lambda document_lists: [documents * 2 + 1 for documents in document_lists],
        "drhard",
        rng,
        ones(*known),
    )
    assert lists.rows.tolist() == [[5, 1, 3]] and lists.positive.tolist() == [[False, False, True]]


def test_best_documents_equal_a_plain_ranking() -> None:
    rng = random.Random(1)
    for _ in range(100):
        total = rng.randint(1, 12)
        owners = sorted(rng.randrange(total) for _ in range(30))
        place = rng.sample(range(total), total)
        rows = [rng.sample(range(30), 25) + [-1] * 3 for _ in range(3)]
        scores = [[rng.choice([0.0, 0.5, rng.random()]) for _ in row] for row in rows]
        depth = rng.randint(1, 8)
        best = best_documents(np.array(scores, dtype=np.float32), np.array(rows), np.array(owners, dtype=np.int32), np.array(place), depth)
        for b, row in enumerate(rows):
            top: dict[int, float] = {}
            for r, s in zip(row, scores[b], strict=True):
                if r >= 0:
                    top[owners[r]] = max(top.get(owners[r], -1.0), s)
            expected = sorted(top, key=lambda d: (-top[d], -place[d]))[:depth]
            actual = [owners[r] for r in best[b].tolist() if r >= 0]
            assert actual == expected and best[b].tolist()[len(actual) :] == [-1] * (depth - len(actual))
            by_row = dict(zip(row, scores[b], strict=True))
            assert [by_row[r] for r in best[b].tolist() if r >= 0] == [top[d] for d in expected]


def test_unranked_lists_hold_every_positive_and_no_positive_twice() -> None:
    lists = unranked_lists([ints(4, 2), ints(9)], [ints(4, 2), ints(9)], [ints(1, 2, 1, 8), ints()], as_is, ones(ints(4, 2), ints(9)))
    assert [[row for row in rows if row >= 0] for rows in lists.rows.tolist()] == [[4, 2, 1, 8], [9]]
    assert lists.positive.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert lists.valid.tolist() == [[True] * 4, [True, False, False, False]]
    assert lists.rows[1].tolist() == [9, -1, -1, -1]
    result = unranked_lists([ints(9), ints()], [ints(9)] * 2, [ints()] * 2, as_is, ones(ints(9), ints(9)))
    assert (result.rows.tolist(), result.grades.tolist()) == ([[9], [-1]], [[1], [0]])


def test_measures_by_hand() -> None:
    rows = np.array([[1, 2, 3, 4], [5, 6, 7, -1], [8, 9, 10, 11]])
    figures = search_metrics(rows, OWNERS, [ints(2, 4), ints(0), ints(11)], cut=3)
    assert figures == pytest.approx({"mrr_3": (1 / 2 + 0 + 0) / 3, "hit_3": 1 / 3, "recall": (1 + 0 + 1) / 3})


def test_overlap_by_hand() -> None:
    lists = unranked_lists([ints(0), ints(5)], [ints(0), ints(5)], [ints(1, 2, 9), ints(6)], as_is, ones(ints(0), ints(5)))
    rows = np.array([[0, 1, 2, 3], [7, 8, -1, -1]])  # of query 0 the dynamic negatives are 1, 2, 3: two of three; of query 1 none of two
    assert overlap(lists, rows, OWNERS, [ints(0), ints(5)]) == pytest.approx((2 / 3 + 0) / 2)
    assert overlap(lists, np.array([[0], [5]]), OWNERS, [ints(0), ints(5)]) == 1.0
    first = unranked_lists([ints(5)], [ints(5)], [ints(0, 1)], as_is, ones(ints(5)))
    assert overlap(first, np.array([[0, 2, 5]]), OWNERS, [ints(5)]) == 0.5, "row 0 is a document, not padding"


def test_figures_of_a_search_equal_plain_python() -> None:
    """Rows and documents from the first to the last, passages that share a document, lists that end early."""
    draw = random.Random(2)
    for _ in range(200):
        owners = sorted([*range(5), *(draw.randrange(5) for _ in range(3))])
        orders = [[next(row for row in draw.sample(range(8), 8) if owners[row] == d) for d in draw.sample(range(5), 4)] for _ in range(3)]
        retrieved = [(rows[: draw.randint(1, 4)] + [-1] * 3)[:4] for rows in orders]
        known = [draw.sample(range(5), draw.randint(1, 3)) for _ in retrieved]
        negatives = [draw.sample(range(5), draw.randint(0, 4)) for _ in retrieved]
        firsts = np.array([owners.index(d) for d in range(5)])
        as_rows = lambda document_lists, firsts=firsts: [firsts[documents] for documents in document_lists]  # noqa: E731
        positives, negative_lists = [ints(*own) for own in known], [ints(*own) for own in negatives]
        lists = unranked_lists(positives, positives, negative_lists, as_rows, ones(*positives))
        mrr, hits, recalls, shares = [], [], [], []
        for rows, own, others in zip(retrieved, known, negatives, strict=True):
            documents = [owners[row] for row in rows if row >= 0]
            places = [n for n, d in enumerate(documents[:2], 1) if d in own]
            mrr.append(1 / places[0] if places else 0)
            hits.append(bool(places))
            recalls.append(len(set(documents) & set(own)) / len(own))
            if dynamic := set(documents) - set(own):
                shares.append(len(dynamic & set(others)) / len(dynamic))
        figures = search_metrics(np.array(retrieved), np.array(owners, dtype=np.int32), positives, cut=2)
        assert figures == pytest.approx({"mrr_2": np.mean(mrr), "hit_2": np.mean(hits), "recall": np.mean(recalls)})
        expected = np.mean(shares) if shares else 1
        assert overlap(lists, np.array(retrieved), np.array(owners, dtype=np.int32), positives) == pytest.approx(expected)


def test_a_document_with_the_text_of_a_positive_is_labelled_like_it() -> None:
    """Document 6 has the text of the positive 3, and is not added where 3 is missing."""
    lists = complete_lists(ints(5, 6, 1)[None], OWNERS, [ints(3)], [ints(3, 6)], as_is, "jpq", np.random.default_rng(0), ones(ints(3, 6)))  # type: ignore[arg-type]
    assert (lists.rows.tolist(), lists.positive.tolist()) == ([[5, 6, 1, 3]], [[False, True, False, True]])
    assert unranked_lists([ints(3)], [ints(3, 6)], [ints(6, 2)], as_is, ones(ints(3, 6))).rows.tolist() == [[3, 2]]


def test_lists_have_the_grades_of_known_documents() -> None:
    grades = [np.array([3, 1, 2], dtype=np.float32)]
    known = [ints(3, 6, 8)]
    lists = complete_lists(ints(5, 6, 1)[None], OWNERS, [ints(3, 8)], known, as_is, "jpq", np.random.default_rng(0), grades)  # type: ignore[arg-type]
    assert (lists.rows.tolist(), lists.grades.tolist()) == ([[5, 6, 1, 3, 8]], [[0, 1, 0, 3, 2]])
    assert lists.positive.tolist() == [[False, True, False, True, True]]
    assert unranked_lists([ints(8)], known, [ints(6, 2)], as_is, grades).grades.tolist() == [[2, 0]]
