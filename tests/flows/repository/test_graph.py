"""The graph as DVC reads it from dvc.yaml."""

from pathlib import Path
from typing import Any

import pytest

from flows.repository.graph import Graph, Stage, read_graph, read_status, refuse_unmade
from tasks.core.errors import UserError


def graph(**edges: str) -> Graph:
    return Graph({name: Stage(name, tuple(upstream.split()), ()) for name, upstream in edges.items()})


@pytest.fixture
def toy_graph(toy: Any, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(toy.folder)
    from dvc.repo import Repo

    return read_graph(Repo())


def test_stages_edges_slots_and_outs_are_those_of_dvc_yaml(toy_graph: Graph) -> None:
    edges = {name: stage.upstream for name, stage in toy_graph.stages.items()}
    assert edges == {
        "prepare": (),
        "unused": ("prepare",),
        "train@a": ("prepare",),
        "train@b": ("prepare",),
        "evaluate@a": ("train@a",),
        "evaluate@b": ("train@b",),
        "report": ("evaluate@a", "evaluate@b"),
    }
    order = list(edges)
    assert all(order.index(upstream) < order.index(name) for name in edges for upstream in edges[name])
    assert {name for name, stage in toy_graph.stages.items() if stage.slot == "device"} == {"train@a", "train@b"}
    assert toy_graph.stages["train@a"].outs == (Path.cwd() / "data/encoders/a",)


def test_status_is_that_of_dvc(toy_graph: Graph) -> None:
    from dvc.repo import Repo

    names = list(toy_graph.stages)
    assert read_status(Repo(), names) == Repo().status(names) != {}
    assert set(read_status(Repo(), ["prepare"])) == {"prepare"}


def test_what_a_stage_reads_and_nobody_makes_is_refused(toy_graph: Graph) -> None:
    from dvc.repo import Repo

    refuse_unmade(Repo(), toy_graph.stages)
    graph = Path("dvc.yaml").read_text()
    Path("dvc.yaml").write_text(graph.replace("deps: [data/metrics]", "deps: [data/metrics, data/raw]"))
    with pytest.raises(UserError, match=r"^dvc.yaml: report reads data/raw, which does not exist and which no stage makes; create it, or"):
        refuse_unmade(Repo(), toy_graph.stages)
    refuse_unmade(Repo(), ["prepare", "train@a"])
    Path("data/raw").mkdir()
    refuse_unmade(Repo(), toy_graph.stages)


def test_targets(toy_graph: Graph) -> None:
    assert toy_graph.resolve(["train", "report", "train@a"]) == ("train@a", "train@b", "report")
    with pytest.raises(UserError, match=r"^dvc.yaml: no stage trane@a; did you mean train@a"):
        toy_graph.resolve(["trane@a"])
    with pytest.raises(UserError, match=r"^dvc.yaml: no stage a; did you mean train@a or evaluate@a\?$"):
        toy_graph.resolve(["a"])
    with pytest.raises(UserError, match=r"^dvc.yaml: no stage zzz; expected one of prepare, unused, train, evaluate, report, or KIND"):
        toy_graph.resolve(["zzz"])  # each kind once, not every stage of it
    assert set(toy_graph.upstream_of(["report"]).stages) == set(toy_graph.stages) - {"unused"}
    assert list(toy_graph.upstream_of(["train@b"]).stages) == ["prepare", "train@b"]


def test_what_is_downstream_of_a_change() -> None:
    diamond = graph(a="", b="a", c="a", d="b c", e="")
    assert diamond.downstream_of(["b"]) == {"b", "d"}
    assert diamond.downstream_of(["a"]) == {"a", "b", "c", "d"}
    assert diamond.downstream_of([]) == frozenset()
