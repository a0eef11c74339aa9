"""Which queries choose, and which confirm."""

import hashlib

from tasks.core.metrics.confirmation import chooses, confirming


def test_a_query_is_on_one_side_for_ever() -> None:
    queries = [f"q{number}" for number in range(2000)]
    choose = {query for query in queries if chooses(query)}
    assert choose == {q for q in queries if int(hashlib.sha256(q.encode()).hexdigest()[:16], 16) % 5 == 0}, "as in any other language"
    assert 340 < len(choose) < 460
    confirm = confirming(queries)
    assert set(confirm) == set(queries) - choose
    assert confirm == confirming(reversed(queries)), "whatever order they come in"
    assert confirming(queries[:500]) == [query for query in confirm if query in set(queries[:500])], "none moves as dev grows"
    places = [queries.index(query) for query in confirm]
    assert abs(sum(places[:800]) / 800 - sum(places[800:]) / len(places[800:])) < 150, "the order has nothing to do with the ids'"
    assert isinstance(chooses("\udc80"), bool), "an id that is no UTF-8"
