"""Time to quality over a graph of stages of fixed duration, worked out by hand."""

from flows.measuring.timing import Measured
from flows.pages.quality import critical_path, label, paths, races, verdicts

TOOK = {"train": 10.0, "encode": 6.0, "index": 1.0, "mine": 3.0, "adore": 5.0}
ROUNDS = {
    "init": {"init": "base", "steps": 0},
    "warmup": {"init": "base"},
    "sync1": {"init": "warmup", "negatives": "warmup"},
    "sync2": {"init": "sync1", "negatives": "sync1"},
    "lag1": {"init": "warmup", "negatives": "warmup"},
    "lag2": {"init": "lag1", "negatives": "warmup"},
    "lag3": {"init": "lag2", "negatives": "lag1"},
}
ADORE = {"short": {"round": "warmup"}, "long": {"round": "warmup"}}
SECTIONS = {"rounds": ROUNDS, "adore": ADORE}
DEV = {"warmup": 0.5, "sync1": 0.55, "sync2": 0.6, "lag1": 0.55, "lag2": 0.56, "lag3": 0.61, "short": 0.58, "long": 0.6}


def graph() -> dict[str, list[str]]:
    edges: dict[str, list[str]] = {"prepare": []}
    for name, entry in ROUNDS.items():
        source = f"train@{entry['init']}" if entry["init"] != "base" else "prepare"
        edges[f"train@{name}"] = [source, *([f"mine@{entry['negatives']}"] if "negatives" in entry else [])]
        edges[f"encode@{name}"] = [f"train@{name}"]
        edges[f"index@{name}"] = [f"encode@{name}", f"train@{name}"]
        edges[f"mine@{name}"] = [f"encode@{name}"]
    for name, entry in ADORE.items():
        edges[f"adore@{name}"] = [f"encode@{entry['round']}"]
    return edges


def stage_times(**other: Measured) -> dict[str, Measured]:
    times = {stage: Measured(TOOK.get(stage.partition("@")[0], 100.0)) for stage in graph()}
    times["adore@long"] = Measured(20.0)
    return times | {name.replace("__", "@"): measurement for name, measurement in other.items()}


def test_seconds_are_those_of_the_critical_path() -> None:
    """Lag 0 waits for encoding and mining in every round; lag 1 trains on meanwhile, so a round costs it only the training."""
    (race,) = races(SECTIONS, graph(), stage_times(), quality=DEV)
    assert race.start == "warmup"
    assert race.unknown == ()
    seconds = {point.model: point.seconds for chain in race.chains for point in chain.points}
    assert seconds == {
        "warmup": 6 + 1,
        "sync1": (6 + 3) + 10 + 6 + 1,
        "sync2": (6 + 3) + (10 + 6 + 3) + 10 + 6 + 1,
        "lag1": (6 + 3) + 10 + 6 + 1,
        "lag2": (6 + 3) + 10 + 10 + 6 + 1,
        "lag3": (6 + 3) + 10 + max(10, 6 + 3) + 10 + 6 + 1,
        "short": 6 + 5,
        "long": 6 + 20,
    }
    assert [(chain.name, chain.is_adore, [point.model for point in chain.points]) for chain in race.chains] == [
        ("short, long", True, ["warmup", "short", "long"]),
        ("sync1, sync2", False, ["warmup", "sync1", "sync2"]),
        ("lag1 to lag3", False, ["warmup", "lag1", "lag2", "lag3"]),
    ]
    assert verdicts(race, "M") == [
        "short, long reaches M 0.6000, the best of sync1, sync2 (sync2, after 45 s), after 26 s: 1.7 times as fast",
        "short, long does not reach M 0.6100, the best of lag1 to lag3 (lag3, after 46 s); its best is 0.6000, after 26 s",
    ]


def test_what_was_not_measured_here_is_named_and_not_guessed() -> None:
    times = stage_times(train__sync1=Measured(10.0, at_least=True))
    del times["encode@lag2"]
    (race,) = races(SECTIONS, graph(), times, quality=DEV)
    assert race.unknown == ("lag2",), "lag3 does not wait for the vectors of lag2"
    points = {point.model: point for chain in race.chains for point in chain.points}
    assert {name for name, point in points.items() if point.at_least} == {"sync1", "sync2"}
    assert verdicts(race, "M")[0].endswith("(sync2, after at least 45 s), after 26 s: at least 1.7 times as fast")
    del times["mine@warmup"]
    (race,) = races(SECTIONS, graph(), times, quality=DEV)
    assert [chain.name for chain in race.chains] == ["short, long"]
    assert races(SECTIONS, {"prepare": []}, times, quality=DEV) == [], "another target: no such stages"


def test_a_ratio_of_times_is_a_bound_where_one_of_them_is() -> None:
    (race,) = races(SECTIONS, graph(), stage_times(adore__long=Measured(20.0, at_least=True)), quality=DEV)
    assert verdicts(race, "M")[0].endswith("(sync2, after 45 s), after at least 26 s: at most 1.7 times as fast")
    (race,) = races(SECTIONS, graph(), stage_times(encode__warmup=Measured(6.0, at_least=True)), quality=DEV)
    assert verdicts(race, "M")[0].endswith("(sync2, after at least 45 s), after at least 26 s"), "which may be any ratio"


def test_a_tower_with_an_index_of_its_own_does_not_wait_for_the_rounds() -> None:
    own = SECTIONS | {"adore": ADORE | {"short": {"round": "warmup", "index": "PQ8"}}}
    (race,) = races(own, graph(), stage_times(index__warmup=Measured(50.0)), quality=DEV)
    seconds = {point.model: point.seconds for chain in race.chains for point in chain.points}
    assert (seconds["short"], seconds["long"]) == (6 + 5, 6 + 50)


def test_chains_that_do_not_improve_on_their_start() -> None:
    (race,) = races(SECTIONS, graph(), stage_times(), quality=DEV | {"sync1": 0.4, "sync2": 0.5})
    assert "sync1, sync2 does not improve on warmup" in verdicts(race, "M")[0]
    assert races({"rounds": {"a": {"init": "base"}, "b": {"init": "a"}}, "adore": None}, graph(), stage_times(), quality=DEV) == [], (
        "one chain is no race"
    )


def test_paths_and_labels() -> None:
    assert paths("base", {"a": {"init": "base"}, "b": {"init": "a"}, "c": {"init": "a"}}, {}) == [(["a", "b"], False), (["a", "c"], False)]
    assert label(["a"]) == "a"
    assert critical_path(["nothing"], {"nothing": []}, {}, free=frozenset()) is None
