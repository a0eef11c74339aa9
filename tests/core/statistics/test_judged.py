"""Queries of a click log are told from judged ones, and measured apart."""

from tasks.core.statistics.judged import CLICKS, click_id, judged_queries, parts

CLICK_0 = click_id("0")
CLICK_1 = click_id("1")
CLICK_2 = click_id("2")


def test_clicks_count_only_where_nothing_else_is_judged() -> None:
    assert judged_queries(["b", CLICK_1, "a"]) == ["b", "a"]
    assert judged_queries([CLICK_1, CLICK_2]) == [CLICK_1, CLICK_2]
    assert judged_queries([]) == []
    assert judged_queries([CLICK_1, "click-to-pay", "click-1"]) == ["click-to-pay", "click-1"], "ids of a data set's own"


def test_only_dev_has_a_part_of_clicks() -> None:
    assert parts("dev", ["b", CLICK_1, "a", CLICK_0]) == {
        "dev": ["b", "a"],
        CLICKS: [CLICK_1, CLICK_0],
    }
    assert parts("dev", ["b"]) == {"dev": ["b"]}
    assert parts("dev", [CLICK_1]) == {"dev": [CLICK_1]}
    assert parts("test", ["b", CLICK_1]) == {"test": ["b", CLICK_1]}
