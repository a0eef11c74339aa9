"""What `auto` decides, case by case; what came between the last full retraining and the champion."""

from dataclasses import replace
from typing import Any

import pytest

from flows.retraining.modes import Choice, Descent, Retrain, choose
from flows.retraining.news import News

NEWS = News(documents=0, documents_before=1000, queries=100, queries_before=1000)
FULL = Descent()


def choose_mode(news: News | None = NEWS, descent: Descent = FULL, changed: Any = (), refused: Any = None, **settings: Any) -> Choice:
    return choose(Retrain(**{"mode": "auto", **settings}), "champion/4", news, changed=changed, refused=refused or {}, descent=descent)


@pytest.mark.parametrize(
    ("news", "mode", "reason"),
    [
        (None, "skip", "no document and no training query is new since champion/4"),
        (NEWS, "query_tower", "100 new training queries (1,000 before), 0 new documents (1,000 before) since champion/4: few or no"),
        (replace(NEWS, documents=99), "query_tower", "99 new documents"),
        (replace(NEWS, documents=100), "continue", "10% of documents since their tower was trained, 10% or more"),
        (replace(NEWS, queries=499), "query_tower", "499 new"),
        (replace(NEWS, queries=500, documents=500), "full", "50% since the last full one, 50% or more"),
        (replace(NEWS, queries=9), "skip", "too few to train on, and the index is complete"),
        (replace(NEWS, queries=9, documents=1), "index", "too few to train on; the champion is indexed with them"),
        (
            replace(NEWS, queries=0, removed=2),
            "index",
            "0 new documents (1,000 before), 2 gone or changed since champion/4: nothing",
        ),
        (replace(NEWS, queries=0, documents=99), "index", "nothing to train on"),
        (replace(NEWS, queries=0, documents=100), "continue", "10% of documents since their tower was trained"),
        (replace(NEWS, queries=9, documents=100), "continue", "10% of documents since their tower was trained"),
        (replace(NEWS, queries=1, queries_before=0, documents_before=0), "full", "100% since the last full one"),
    ],
)
def test_what_is_new_decides(news: News | None, mode: str, reason: str) -> None:
    choice = choose_mode(news)
    assert choice.mode == mode
    assert reason in choice.why


def test_a_changed_recipe_is_trained_from_its_beginning() -> None:
    assert choose_mode(None, changed=["rounds", "the code of train"]) == Choice(
        "full", "rounds, the code of train changed since champion/4"
    )
    assert choose_mode(changed=["rounds"], mode="continue").mode == "continue", "asked for by name"


def test_a_mode_asked_for_is_not_run_on_nothing() -> None:
    assert choose_mode(replace(NEWS, queries=1, documents=900), mode="query_tower").mode == "query_tower"
    assert choose_mode(replace(NEWS, queries=0, documents=900), mode="query_tower").mode == "index"
    assert choose_mode(replace(NEWS, queries=0), mode="continue").mode == "skip"
    assert choose_mode(None, mode="continue").mode == "skip", "or it would train on itself every week"


def test_what_the_champion_rules_out_is_full() -> None:
    refused = {"query_tower": "champion/4 has 2 encoders, expected one"}
    assert choose_mode(refused=refused) == Choice("full", "champion/4 has 2 encoders, expected one, so no query_tower")
    assert choose_mode(replace(NEWS, documents=500), refused=refused).mode == "continue"


def record(mode: str, queries: int = 0, documents: int = 0) -> dict[str, Any]:
    return {"mode": mode, "news": {"queries": queries, "queries_before": 1000, "documents": documents, "documents_before": 2000}}


def test_small_changes_add_up() -> None:
    assert Descent.of([]) == Descent.of([{}]) == Descent.of([{"mode": "full"}, record("continue", 5)]) == FULL
    weeks = [record("query_tower", 40, 30), record("index", 1, 20), record("continue", 30, 300), record("query_tower", 20, 10), {}]
    weeks[2]["news"]["documents_before"] = 1500
    weeks[3]["news"]["queries_before"] = 800  # what the full retraining had
    assert Descent.of(weeks) == Descent(91, 800, 50, 2000)
    assert Descent.of(weeks[2:]) == Descent(50, 800, 0, None), "the champion's own document tower is new"
    news = replace(NEWS, queries=100, documents=60, documents_before=2050)
    assert choose_mode(news, Descent(300, 800, 50, 2000)).mode == "full", "400 of 800"
    assert choose_mode(news, Descent(299, 800, 139, 2000)).mode == "query_tower"
    assert choose_mode(news, Descent(299, 800, 140, 2000)).mode == "continue", "200 of 2,000"


def test_queries_that_were_only_indexed_are_counted_until_they_are_trained_on() -> None:
    weeks = [record("index", 4), record("index", 5, 1), record("query_tower", 40), record("index", 3)]
    assert Descent.of(weeks).untrained == 9
    assert Descent.of(weeks[2:]).untrained == 0
    assert Descent.of(weeks[:2]).untrained == 9, "a full retraining trains on all"
    news = replace(NEWS, documents=1, queries=1, queries_before=1009)
    assert choose_mode(news, Descent.of(weeks[:2])).mode == "query_tower", "10 of 1,000"
    assert choose_mode(replace(news, queries_before=1008), Descent.of(weeks[1:])).mode == "index", "6 of 1,003"
    choice = choose_mode(replace(news, documents=0), Descent(8, 1000, 0, 1000, 8))
    assert choice.mode == "skip"
    assert choice.why.endswith("since champion/4, 8 more queries since it was trained: too few to train on, and the index is complete")
    assert choose_mode(replace(news, queries=0), Descent.of(weeks[:2]), mode="continue").mode == "continue", "asked for, and nine are left"
    assert choose_mode(replace(news, queries=0, documents=900), replay=0).mode == "index", "no query to train on"


@pytest.mark.parametrize(
    ("queries", "documents", "mode", "week"),
    [(90, 3, "query_tower", 2), (90, 400, "continue", 2), (3, 0, "query_tower", 34), (3, 3, "query_tower", 34), (0, 40, "continue", 13)],
)
def test_no_year_of_small_batches_goes_untrained(queries: int, documents: int, mode: str, week: int) -> None:
    """Each week some new queries beside 10,000, and documents beside 5,000; what ends as unchanged is new again in the next week."""
    known, docs, waiting, records, modes = 10_000, 5_000, 0, list[dict[str, Any]](), list[str]()
    for _ in range(52):
        waiting += queries
        news = News(documents=documents, documents_before=docs, queries=waiting, queries_before=known)
        choice = choose_mode(news, Descent.of(records))
        modes.append(choice.mode)
        if choice.mode != "skip":
            counts = {"queries": waiting, "queries_before": known, "documents": documents, "documents_before": docs}
            records, known, docs, waiting = [{"mode": choice.mode, "news": counts}, *records], known + waiting, docs + documents, 0
    assert next((name, number) for number, name in enumerate(modes, 1) if name not in ("skip", "index")) == (mode, week)
