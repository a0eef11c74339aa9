"""How many ranks of each list a fusion is searched with."""

from typing import Any

from flows.results.fusions import depths


def lock_entry(section: str, **values: int) -> dict[str, Any]:
    return {"params": {"data/params.json": {section: values}}}


def test_ranks_are_those_of_the_runs_not_of_an_edited_params_yaml() -> None:
    lock = {
        "bm25": lock_entry("bm25", run_depth=500),
        "retrieve_bm25": lock_entry("retrieve", depth=1000),
        "retrieve@star": lock_entry("retrieve", depth=200),
        "retrieve_adore@tower": lock_entry("retrieve", depth=300),
    }
    edited = {"retrieve": {"depth": 10}, "bm25": {"run_depth": 20}}
    assert depths(["bm25", "star"], lock, edited) == (200, 500)
    assert depths(["tower"], lock, edited) == (300, 500)
    assert depths(["star"], {}, edited) == (10, 20)
    assert depths(["star"], {}, {}) == (1000, 1000), "the defaults"
