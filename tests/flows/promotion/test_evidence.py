"""What a comparison with a guarantee reads: values by query, fusions' grids, the champion's dev queries, groups."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.outs import Lost
from flows.champions.parts import Parts
from flows.process.display import Display
from flows.process.processes import Processes
from flows.promotion import evidence
from flows.promotion.records import Promotion
from flows.retraining import decision
from flows.retraining.decision import Candidate, compare
from tasks.core.errors import UserError
from tasks.core.statistics.confirmation import is_selection_query
from tasks.core.statistics.judged import click_id
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import COLUMNS, QRELS, QUERIES

CLICK_1 = click_id("1")

NAMES = sorted(f"q{number}" for number in range(800))
GUARANTEED = Promotion()
Metrics = dict[str, dict[str, dict[str, float]]]


def write_values(folder: Path, values: dict[str, float]) -> dict[str, dict[str, float]]:
    """The values, and the metrics that go with them."""
    schema = pa.schema([("query", pa.string()), ("m", pa.float64())])
    write_table(folder / "dev.parquet", schema, [pa.table({"query": list(values), "m": list(values.values())}, schema)])
    return {"dev": {"m": sum(values.values()) / len(values)}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_systems_are_chosen_on_the_queries_that_choose() -> None:
    first = write_values(evidence.VALUES / "one", {query: 0.6 if is_selection_query(query, {}) else 0.1 for query in NAMES})
    second = write_values(evidence.VALUES / "two", dict.fromkeys(NAMES, 0.5))
    metrics = {"one": first, "two": second, "gone": {"dev": {"m": 0.9}}, "untested": {"train": {"m": 1.0}}}
    choosing = evidence.choosing_metrics(metrics, "m", GUARANTEED, groups={})
    assert {model: splits["dev"]["m"] for model, splits in choosing.items()} == {"one": pytest.approx(0.6), "two": pytest.approx(0.5)}
    assert evidence.choosing_metrics(metrics, "m", Promotion(rule="better"), groups={}) == metrics
    count = sum(is_selection_query(query, {}) for query in NAMES)
    assert f"chosen on the {count:,} of {len(NAMES):,} dev queries" in evidence.chosen_on("one", "m", GUARANTEED, groups={})
    assert evidence.chosen_on("one", "m", Promotion(rule="better"), groups={}) == "", "on all"
    write_values(evidence.VALUES / "one", {next(query for query in NAMES if not is_selection_query(query, {})): 0.6})
    with pytest.raises(UserError, match="its only judged query is not among the one in 5"):
        evidence.choosing_metrics({"one": first}, "m", GUARANTEED, groups={})


def in_groups(*sizes: int, clicked: int = 0, selected: bool | None = None) -> list[tuple[str, str, int]]:
    """Dev judgments of groups of queries that share a document, which all choose (`selected`), or all confirm, and of clicks."""
    judged: list[tuple[str, str, int]] = []
    for number, size in enumerate(sizes):
        names = (f"g{number}-{attempt:03}-" for attempt in range(100))
        name = next(name for name in names if selected is None or is_selection_query(f"{name}0", {}) == selected)
        judged += [(f"{name}{query}", f"d{number}", 1) for query in range(size)]
    return judged + [(click_id(str(query)), f"c{query}", 1) for query in range(clicked)]


@pytest.mark.parametrize(
    ("judged", "rule", "refusal", "warning"),
    [
        (in_groups(*[1] * 60), "guaranteed", "", ""),
        (
            in_groups(20, 20, selected=False),
            "guaranteed",
            "none of its 40 judged queries is among the one in 5 that choose the new model",
            "",
        ),
        (in_groups(20, 20, selected=False), "not_worse", "", ""),
        (in_groups(20, 20, selected=True), "guaranteed", "", "none of 40 judged queries is left to confirm a choice"),
        (in_groups(clicked=50), "guaranteed", "", "all 50 judged queries come from clicks, which decide no promotion"),
        (in_groups(clicked=50), "better", "", "all 50 judged queries come from clicks, which decide no promotion"),
        (in_groups(1), "better", "", "found 1 judged query in common, expected at least 2"),
        ([], "guaranteed", "", ""),
    ],
)
def test_a_dev_set_on_which_nothing_can_be_decided_is_named_before_the_training(
    folder: Path, judged: list[tuple[str, str, int]], rule: Any, refusal: str, warning: str
) -> None:
    """Ids and judgments alone tell: it took a whole training to hear of it."""
    warnings: list[str] = []
    evidence.foresee(folder, "m", Promotion(rule=rule), warn=warnings.append)
    rows = [{"query": query, "doc": doc, "grade": grade} for query, doc, grade in judged]
    write_table(folder / "qrels/dev.parquet", QRELS, [pa.Table.from_pylist(rows, QRELS)])
    if refusal:
        with pytest.raises(UserError, match=f"^dev: {refusal}"):
            evidence.foresee(folder, "m", Promotion(rule=rule), warn=warnings.append)
        return
    evidence.foresee(folder, "m", Promotion(rule=rule), warn=warnings.append)
    assert len(warnings) == bool(warning) and all(line.startswith(f"dev: {warning}") for line in warnings), warnings


def test_systems_that_the_confirming_queries_had_a_say_in(folder: Path) -> None:
    def write_fusion(name: str, chosen_on: str | None, grid: int, **entry: Any) -> dict[str, Any]:
        path = folder / f"data/runs/{name}/fusion.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"weight": 0.5, "k": None, "method": "linear", "chosen_on": chosen_on, "grid": [0] * grid, **entry}))
        return entry

    for model in ("a", "b"):
        (folder / "data/indexes" / model).mkdir(parents=True)
    part = write_fusion("part", "dev (selection part)", 21, first="bm25", second="a")
    dev = write_fusion("dev", "dev", 21, first="bm25", second="a")
    nested = write_fusion("nested", "dev", 7, first="dev", second="b")
    sections: dict[str, Any] = {"rounds": {"a": {}, "b": {}}, "fuse": {"part": part}}
    metrics: Metrics = {name: {"dev": {"m": 0.5}} for name in ("a", "b", "bm25", "part")}
    assert evidence.count_looks(metrics, "m", sections) == 1
    sections["fuse"]["dev"] = dev
    metrics["dev"] = {"dev": {"m": 0.5}}
    assert evidence.count_looks(metrics, "m", sections) == 1 + 1 + 1 + 21, "a, b, part, and each weight; BM25 alone is no candidate"
    sections["fuse"]["nested"] = nested
    metrics["nested"] = {"dev": {"m": 0.5}}
    assert evidence.count_looks(metrics, "m", sections) == 24 + 21 * 7
    assert evidence.count_looks(metrics, "m", sections, fused=False) == 1, "no fusion is a candidate"


def test_queries_that_are_newer_than_the_champion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = Champion(2, "a", "promoted", "", digests={"corpus": "c1"}, commit="f" * 40)
    corpus = Parts({"corpus": "data/pseudo"}, {"corpus": "c2"}, {})
    warnings: list[str] = []

    def get_out(_: Path, commit: str, path: str, out: Path) -> None:
        assert (commit, path) == (current.commit, "data/pseudo/qrels/dev.parquet")
        write_table(out, QRELS, [pa.table({"query": ["q1", "q1", "q2"], "doc": list("abc"), "grade": [1, 0, 1]}, QRELS)])

    monkeypatch.setattr(champion, "parts_at", lambda *_: corpus)
    monkeypatch.setattr(champion, "get_out", get_out)
    assert evidence.fresh_queries(folder, current, corpus, queries=["q1", "q2", "q3"], warn=warnings.append) == {"q3"}
    parts = Parts({"corpus": "data/pseudo"}, {"corpus": "c1"}, {})
    assert evidence.fresh_queries(folder, current, parts, queries=["q3"], warn=warnings.append) == set() and not warnings

    def report_lost(*_: Any, **__: Any) -> None:
        raise failure

    failure: UserError = Lost("nowhere any more")
    monkeypatch.setattr(champion, "get_out", report_lost)
    assert evidence.fresh_queries(folder, current, corpus, queries=["q3"], warn=warnings.append) == set()
    assert warnings == ["dev: cannot tell which queries are newer than champion/2, so none counts as new: nowhere any more"]
    failure = UserError("the remote is unavailable")
    with pytest.raises(UserError, match="unavailable"):  # or the verdict would be recorded, and kept, without them
        evidence.fresh_queries(folder, current, corpus, queries=["q3"], warn=warnings.append)


def test_groups_are_read_from_the_corpus(folder: Path) -> None:
    assert evidence.slices(folder) == {}
    table = pa.table({"id": ["1", "2"], "text": ["who is it", "why"], "answers": [None, None]}, QUERIES)
    write_table(folder / "queries/dev.parquet", QUERIES, [table])
    assert "question word who" in evidence.slices(folder)
    write_table(folder / "columns/dev.parquet", COLUMNS, [pa.table({"query": ["2"], "column": ["kind"], "value": ["x"]}, COLUMNS)])
    assert evidence.slices(folder)["column kind x"] == ["2"]
    assert evidence.groups(folder) == {}
    rows = [["1", "2", "3", "3", CLICK_1, CLICK_1], ["a", "a", "b", "a", "a", "b"], [1, 1, 1, 0, 1, 1]]
    write_table(folder / "qrels/dev.parquet", QRELS, [pa.table(rows, schema=QRELS)])
    assert evidence.groups(folder) == {"1": "1", "2": "1", "3": "3"}, "a click joins none"


@pytest.mark.parametrize(
    ("theirs", "rule", "measured", "promoted"),
    [
        ({1: 0.3, 2: 0.3}, "guaranteed", [2, 1], True),
        ({1: 0.6, 2: 0.3}, "guaranteed", [2, 1], False),
        ({1: 0.3, 2: 0.6}, "guaranteed", [2], False),
        ({1: 0.6, 2: 0.3}, "not_worse", [2], True),
    ],
)
def test_each_champion_that_stands_is_measured_until_one_is_not_met(
    folder: Path, monkeypatch: pytest.MonkeyPatch, theirs: dict[int, float], rule: Any, measured: list[int], promoted: bool
) -> None:
    """A candidate of 0.5 everywhere, two champions that stand."""
    record = {"rule": "guaranteed", "measure": "m", "against": {"1": {}}, "beaten": []}
    champions = [Champion(1, "a", "first", "", digests={"encoder": "e1"}), Champion(2, "a", "promoted", "", comparison=record)]
    calls: list[int] = []

    def evaluate(_project: Path, rival: Champion, **_: Any) -> Any:
        calls.append(rival.number)
        return write_values(decision.SCRATCH / "values", dict.fromkeys(NAMES, theirs[rival.number]))

    monkeypatch.setattr(decision, "evaluate_champion", evaluate)
    metrics: Metrics = {"a": write_values(evidence.VALUES / "a", dict.fromkeys(NAMES, 0.5))}
    candidate = Candidate(Champion(3, "a", "promoted", "", measure="m"), Parts({"corpus": "data/corpus"}, {}, {}), metrics, looks=1)
    verdict = compare(folder, champions, candidate, rule=Promotion(rule=rule), processes=Processes(), display=Display())
    assert calls == measured and verdict.promoted == promoted
    assert set(metrics) == {"a", *(f"champion/{number}" for number in measured)}
    assert verdict.rule == rule


@pytest.mark.parametrize("rule", ["guaranteed", "not_worse"])
def test_the_comparison_knows_which_queries_share_a_document(folder: Path, monkeypatch: pytest.MonkeyPatch, rule: Any) -> None:
    rows = [NAMES, [f"d{place % 100}" for place in range(len(NAMES))], [1] * len(NAMES)]
    write_table(folder / "data/corpus/qrels/dev.parquet", QRELS, [pa.table(rows, schema=QRELS)])
    evaluate = lambda *_, **__: write_values(decision.SCRATCH / "values", dict.fromkeys(NAMES, 0.3))  # noqa: E731
    monkeypatch.setattr(decision, "evaluate_champion", evaluate)
    metrics: Metrics = {"a": write_values(evidence.VALUES / "a", dict.fromkeys(NAMES, 0.5))}
    verdict = compare(
        folder,
        [Champion(1, "a", "first", "", digests={"encoder": "e1"})],
        Candidate(Champion(2, "a", "promoted", "", measure="m"), Parts({"corpus": "data/corpus"}, {}, {}), metrics, looks=1),
        rule=Promotion(rule=rule),
        processes=Processes(),
        display=Display(),
    )
    confirm = len(
        {place % 100 for place in range(len(NAMES)) if not is_selection_query(NAMES[place], evidence.groups(folder / "data/corpus"))}
    )
    groups = confirm if rule == "guaranteed" else 100
    assert 70 < confirm < 90
    assert verdict.groups == groups and f"in {groups} groups that share relevant documents" in verdict.reason


def test_of_many_champions_the_one_that_is_beaten_may_be_the_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four that none beat, and an anchor that was named later: a candidate must be better than one of the five."""

    def winner(number: int) -> Champion:
        record = {"rule": "guaranteed", "measure": "m", "against": {str(rival): {} for rival in range(2, number)}, "beaten": []}
        return Champion(number, "a", "promoted", "", digests={"encoder": f"e{number}"}, comparison=record)

    first, hand = (Champion(number, "a", cause, "", digests={"encoder": f"e{number}"}) for number, cause in ((1, "first"), (2, "set")))
    calls: list[int] = []

    def evaluate(_project: Path, rival: Champion, **_: Any) -> Any:
        calls.append(rival.number)
        return write_values(decision.SCRATCH / "values", dict.fromkeys(NAMES, 0.3 if rival.number == 1 else 0.5))

    monkeypatch.setattr(decision, "evaluate_champion", evaluate)
    metrics: Metrics = {"a": write_values(evidence.VALUES / "a", dict.fromkeys(NAMES, 0.5))}
    verdict = compare(
        folder,
        [first, hand, winner(3), winner(4), winner(5)],
        Candidate(Champion(6, "a", "promoted", "", measure="m"), Parts({"corpus": "data/corpus"}, {}, {}), metrics, looks=1),
        rule=Promotion(margin=0.1, anchor=1),
        processes=Processes(),
        display=Display(),
    )
    assert calls == [5, 4, 3, 2, 1]
    assert (verdict.promoted, verdict.beaten) == (True, [1])
