"""Which queries choose, and which confirm."""

import hashlib
import math

import numpy as np

from tasks.core.statistics.clusters import connected
from tasks.core.statistics.confirmation import confirmation_queries, is_selection_query


def test_a_query_is_on_one_side_for_ever() -> None:
    queries = [f"q{number}" for number in range(2000)]
    choose = {query for query in queries if is_selection_query(query, {})}
    assert choose == {q for q in queries if int(hashlib.sha256(q.encode()).hexdigest()[:16], 16) % 5 == 0}, "as in any other language"
    assert 340 < len(choose) < 460
    confirm = confirmation_queries(queries, {})
    assert set(confirm) == set(queries) - choose
    assert confirm == confirmation_queries(reversed(queries), {}), "whatever order they come in"
    assert confirmation_queries(queries[:500], {}) == [query for query in confirm if query in set(queries[:500])], "none moves as dev grows"
    ranks = [queries.index(query) for query in confirm]
    assert abs(sum(ranks[:800]) / 800 - sum(ranks[800:]) / len(ranks[800:])) < 150, "the order has nothing to do with the ids'"
    assert isinstance(is_selection_query("\udc80", {}), bool), "an id that is no UTF-8"


def test_queries_that_share_a_relevant_document_are_on_one_side() -> None:
    queries = [f"q{number:04}" for number in range(2000)]
    groups = connected((query, f"d{n // 5}") for n, query in enumerate(queries))
    choose = [query for query in queries if is_selection_query(query, groups)]
    assert choose == [query for n, query in enumerate(queries) if is_selection_query(queries[n // 5 * 5], {})], "as the least of them"
    assert 50 < len(choose) / 5 < 110
    assert set(confirmation_queries(queries, groups)) == set(queries) - set(choose)


def test_the_best_of_ten_on_those_that_choose_is_no_better_on_those_that_confirm() -> None:
    """Ten equal systems, five queries a document with the same luck: the chosen one's mean over confirming queries is like any other's."""
    rng, queries = np.random.default_rng(6), [f"q{number:04}" for number in range(500)]
    groups = connected((query, f"d{n // 5}") for n, query in enumerate(queries))
    bias = {"by group": np.empty(400), "by query": np.empty(400)}
    for name, means in bias.items():
        selects = np.array([is_selection_query(query, groups if name == "by group" else {}) for query in queries])
        for trial in range(400):
            scores = np.repeat(rng.normal(size=(10, 100)), 5, axis=1)
            means[trial] = scores[scores[:, selects].mean(axis=1).argmax(), ~selects].mean()
    error = 1 / math.sqrt(80 * 400)  # of 80 documents that confirm
    assert abs(bias["by group"].mean()) < 4 * error < 10 * error < bias["by query"].mean()
