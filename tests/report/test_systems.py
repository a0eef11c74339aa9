"""Systems in table order, what is said of them, and the one that the best is compared with."""

import math
from pathlib import Path

import numpy as np

from tasks.core.files import read_json, write_json
from tasks.report.systems import System, depth_note, load_systems, opponents, order_names, ranks, recipe, shared_settings_text
from tests.report.project import make_system


def system(name: str, values: list[float]) -> System:
    return System(
        name, "", {"test": {"AP": float(np.mean(values))}}, {"test": [str(i) for i in range(len(values))]}, {"test": np.array(values)}
    )


def rival_of(chosen: System, *others: System, baselines: tuple[str, ...] = ("bm25",)) -> str | None:
    pair = opponents([*others, chosen], chosen, baselines, "AP", split="test", sections={})
    assert pair is None or pair[0] is chosen
    return pair[1].name if pair else None


def test_the_best_is_compared_with_the_first_baseline() -> None:
    assert rival_of(system("star", [1, 1]), system("bm25", [0, 1]), system("warmup", [1, 0.5])) == "bm25"


def test_a_baseline_that_is_best_is_compared_with_the_next_different_system() -> None:
    bm25, copy, worse = system("bm25", [1, 1]), system("hybrid", [1, 1]), system("star", [0, 1])
    assert rival_of(bm25, copy, worse) == "star"
    assert rival_of(bm25, copy) == "hybrid"
    assert rival_of(bm25) is None


def test_clicks_need_not_have_the_metric(tmp_path: Path) -> None:
    """Coverage is not measured on queries of a click log, which have no answers."""
    make_system(tmp_path, "bm25", 0.5, ("dev",))
    means = read_json(tmp_path / "metrics/bm25.json")
    write_json(tmp_path / "metrics/bm25.json", means | {"clicks": {"RR@10": 0.5}})
    (bm25,) = load_systems(tmp_path / "metrics", tmp_path / "values", "AP", {})
    assert bm25.values.keys() == bm25.queries.keys() == {"dev"}


def test_a_recipe_names_the_pretraining_under_it() -> None:
    sections = {
        "pretrain": {"costa": {"init": "base", "objective": "costa"}},
        "rounds": {"a": {"init": "costa", "loss": "nll"}, "b": {"init": "a"}},
    }
    assert recipe("a", sections) == "from costa, loss nll (costa: from base, objective costa)"
    assert recipe("b", sections) == "from a"
    sections["rounds"]["b"] |= {"epochs": 2, "steps": 7}
    assert recipe("b", sections) == "from a, steps 7"


def test_reordered_runs_have_recipes_and_follow_their_models() -> None:
    sections = {
        "rounds": {"a": {"init": "base"}},
        "adore": {"q": {"round": "a"}},
        "rerank": {"r": {"run": "a", "reranker": "small", "depth": 30}},
        "fuse": {"h": {"first": "bm25", "second": "q", "method": "linear"}},
        "rescore": {"b": {"run": "bm25", "round": "a"}},
    }
    assert recipe("h", sections) == "first bm25, second q, method linear"
    assert recipe("r", sections) == "run a, reranker small, depth 30"
    assert recipe("b", sections) == "run bm25, round a"
    assert order_names({"b", "r", "q", "a", "bm25", "h", "x"}, sections) == ["bm25", "a", "q", "h", "r", "b", "x"]


def test_a_short_run_lowers_measures_that_count_ranks_below_it() -> None:
    values = dict.fromkeys(("RR@10", "R@11", "AP", "nDCG(judged_only=True)@10", "Hole@100"), 0.5)
    short = System("short", "", {"dev": values}, {}, {})
    note = "short has at most 10 ranks, which lowers its R@11, AP, nDCG(judged_only=True)@10"
    assert depth_note([short], {"rerank": {"short": {"run": "bm25", "depth": 10}}}) == note
    assert depth_note([short], {}) == ""


def test_ranks_of_runs_that_are_made_of_reordered_ones() -> None:
    """A run of a fusion has all documents of both lists, so one that is whole makes it long."""
    sections = {
        "rounds": {"star": {}},
        "rerank": {"r": {"run": "star", "depth": 30}, "r2": {"run": "bm25"}, "again": {"run": "r"}},
        "rescore": {"s": {"run": "both"}, "short": {"run": "few"}},
        "fuse": {
            "whole": {"first": "r", "second": "star"},
            "both": {"first": "r", "second": "r2"},
            "few": {"first": "r", "second": "again"},
            "low": {"first": "both", "second": "r", "depth": 50},
        },
    }
    expected = {"r": 30, "r2": 100, "again": 30, "both": 130, "s": 100, "few": 60, "short": 60, "low": 50}
    assert {name: ranks(name, sections) for name in expected} == expected
    assert {ranks(name, sections) for name in ("star", "bm25", "whole", "unknown")} == {math.inf}
    system = System("short", "", {"dev": {"R@60": 0.5, "R@100": 0.5}}, {}, {})
    assert depth_note([system], sections) == "short has at most 60 ranks, which lowers its R@100"


def test_settings_shared_by_all_rounds_are_listed_once() -> None:
    rounds: dict[str, dict[str, object]] = {name: {"init": "base", "lr": 1e-5, "epochs": 3, "steps": 7, "loss": "nll"} for name in "abcd"}
    rounds["d"] |= {"loss": "ranknet"}
    sections = {"rounds": {"init": {"init": "base", "steps": 0}, **rounds}, "adore": {"q": {"round": "a", "lr": 1e-5}}}
    assert shared_settings_text(sections) == "lr 1e-05, steps 7"
    assert recipe("a", sections) == "from base, loss nll"
    assert recipe("init", sections) == "from base, steps 0"
    assert recipe("q", sections) == "round a, lr 1e-05", "not a round: it lists its own settings"
    del rounds["b"], sections["rounds"]["b"]
    assert shared_settings_text(sections) == "", "few rounds list all their settings"
