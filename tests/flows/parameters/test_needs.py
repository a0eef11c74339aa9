"""What entries of params.yaml need of one another, by hand and by plain reachability."""

import itertools
from typing import Any, get_origin

from flows.parameters.needs import EMPTIED, find_cycle, keep_needed, needs, with_needs
from tasks.params import Parameters

RECIPE: dict[str, Any] = {
    "dataset": {"source": "demo"},
    "encoders": {"own": {"source": "x"}, "other": {"source": "y"}},
    "pretrain": {"costa": {"init": "own"}, "idle": {"init": "base"}},
    "rounds": {
        "init": {"init": "base", "negatives": "none"},
        "warmup": {"init": "costa", "negatives": "bm25"},
        "star": {"init": "warmup", "negatives": "scored"},
        "side": {"init": "other", "negatives": "half"},
    },
    "mine": {"warmup": {}, "star": {}},
    "mix": {"half": {"first": "bm25", "second": "star"}},
    "rerankers": {"small": {"negatives": "none"}, "large": {"negatives": "half"}},
    "teacher": {"scored": {"negatives": "warmup", "reranker": "small"}},
    "adore": {"tower": {"round": "star", "negatives": "none"}},
    "fuse": {"both": {"first": "bm25", "second": "tower"}, "deep": {"first": "again", "second": "side"}},
    "rerank": {"again": {"run": "warmup", "reranker": "large"}},
    "rescore": {"late": {"run": "bm25", "round": "star", "encoder": "tower"}},
    "study": {"sizes": {"round": "star"}, "more": {"round": "side"}},
    "analyses": {"a": {"round": "warmup", "negatives": "bm25"}, "b": {"round": "star", "negatives": "half"}},
}


def needed_names(*systems: str) -> dict[str, list[str]]:
    needed = keep_needed(RECIPE, systems)
    assert needed.pop("dataset") == RECIPE["dataset"]
    assert all(entry == RECIPE[section][name] for section, entries in needed.items() for name, entry in entries.items())
    return {section: list(entries) for section, entries in needed.items() if entries}


def test_what_a_fusion_needs_down_to_the_encoder_that_it_starts_from() -> None:
    assert needed_names("both") == {
        "encoders": ["own"],
        "pretrain": ["costa"],
        "rounds": ["warmup", "star"],
        "mine": ["warmup"],
        "rerankers": ["small"],
        "teacher": ["scored"],
        "adore": ["tower"],
        "fuse": ["both"],
        "study": ["sizes"],
        "analyses": ["a"],
    }


def test_what_needs_nothing_and_what_needs_nearly_all() -> None:
    assert needed_names("init") == {"rounds": ["init"]}
    sections = needed_names("deep", "both", "init")
    assert set(RECIPE) - set(sections) == {"dataset", "rescore"}
    assert sections["pretrain"] == ["costa"], "no round starts from the other"
    assert (sections["mix"], sections["rerankers"], sections["rerank"]) == (["half"], ["small", "large"], ["again"])


def test_a_rescored_run_needs_what_it_reads() -> None:
    assert sorted(needs(RECIPE)["rescore.late"]) == ["adore.tower", "rounds.star"]
    assert needs({"rounds": {"a": {"init": "gone"}}, "mix": None}) == {"rounds.a": []}, "names that are no entries"


def test_cycles_are_found_exactly_where_there_are_some() -> None:
    """Every graph of three names with up to two edges each, against the powers of its adjacency matrix."""
    names = "abc"
    choices = [list(subset) for size in range(3) for subset in itertools.combinations(names, size)]
    for edges in itertools.product(choices, repeat=3):
        graph = dict(zip(names, edges, strict=True))
        reach = {(a, b) for a in names for b in graph[a]}
        for _ in names:
            reach |= {(a, d) for a, b in reach for c, d in reach if b == c}
        cyclic = any((name, name) in reach for name in names)
        path = find_cycle(graph)
        assert bool(path) == cyclic, graph
        if path:
            assert path[0] == path[-1]
            assert all(second in graph[first] for first, second in itertools.pairwise(path))


def test_reached_is_all_that_walks_come_by() -> None:
    graph = {"a": ["b", "c"], "b": ["d"], "c": [], "d": ["b"], "e": ["a"]}
    assert with_needs(graph, ["a"]) == {"a", "b", "c", "d"}
    assert with_needs(graph, ["c", "z"]) == {"c", "z"}
    assert with_needs(graph, []) == set()
    assert with_needs({"encode@a": ("train@a", "prepare"), "train@a": ("prepare",), "prepare": ()}, ["train@a"]) == {"train@a", "prepare"}


def test_a_run_of_given_encoders_empties_every_section_with_entries_that_it_does_not_set() -> None:
    with_entries = {name for name, field in Parameters.model_fields.items() if get_origin(field.annotation) is dict}
    assert set(EMPTIED) == with_entries - {"encoders", "rounds", "extra"}, "extra has data sets, which such a run does not measure"
