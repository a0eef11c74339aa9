"""Queries of a click log are told from judged ones, and measured apart."""

from tasks.core.statistics.judged import CLICKS, judged_queries, parts


def test_clicks_count_only_where_nothing_else_is_judged() -> None:
    assert judged_queries(["b", "click-1", "a"]) == ["b", "a"]
    assert judged_queries(["click-1", "click-2"]) == ["click-1", "click-2"]
    assert judged_queries([]) == []


def test_only_dev_has_a_part_of_clicks() -> None:
    assert parts("dev", ["b", "click-1", "a", "click-0"]) == {"dev": ["b", "a"], CLICKS: ["click-1", "click-0"]}
    assert parts("dev", ["b"]) == {"dev": ["b"]}
    assert parts("dev", ["click-1"]) == {"dev": ["click-1"]}
    assert parts("test", ["b", "click-1"]) == {"test": ["b", "click-1"]}
