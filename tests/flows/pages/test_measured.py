"""Pages of what this machine measured: the report's with its times, and the timeline."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.measuring.timing import Measured, Span
from flows.pages import analyses, costs, measured, origins
from flows.pages.quality import Chain, Race, Reached
from flows.repository.graph import Graph, Stage
from tasks.core.files import write_json

HOSTILE = "<script>x</script>"
GRAPH = Graph(
    {
        name: Stage(name, tuple(upstream), ())
        for name, upstream in {
            "train@w": [],
            "encode@w": ["train@w"],
            "mine@w": ["encode@w"],
            "train@b": ["mine@w"],
            "encode@b": ["train@b"],
            "adore@q": ["encode@w"],
            "evaluate_adore@q": ["adore@q"],
            "rerank@r": ["encode@w"],
            "rescore@s": ["encode@w"],
            "report": ["encode@b", "adore@q", "rerank@r", "rescore@s"],
        }.items()
    }
)


def test_the_page_is_the_report_and_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("rounds: {w: {init: base}, unfinished: {lr: 1.0}}\n")  # edited during the run
    rounds = {"w": {"init": "base"}, "b": {"init": "w"}}
    parameters = {"report": {"metric": "M"}, "rounds": rounds, "adore": {"q": {"round": "w"}}, "rerank": {"r": {}}, "rescore": {"s": {}}}
    for name, value in {"w": 0.5, "b": 0.6, "q": 0.7}.items():
        (tmp_path / "data/metrics").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"data/metrics/{name}.json").write_text(json.dumps({"dev": {"M": value}, "test": {"M": 0.9}}))
    (tmp_path / "data/params.json").write_text(json.dumps(parameters))
    (tmp_path / "data/latency").mkdir()
    latency = {"mean": 20.25, "p50": 19.0, "p95": 31.5}
    (tmp_path / "data/latency/r.json").write_text(
        json.dumps({"device": "cpu, 2 threads", "depth": 30, "milliseconds a query": {"dev": latency}})
    )
    (tmp_path / "data/latency/s.json").write_text(
        json.dumps({"device": "cpu, 2 threads", "depth": 100, "test": {"milliseconds a query": 1.5}})
    )
    (tmp_path / "data/report").mkdir()
    links = f"<nav>{measured.LINKS}{measured.LAST_LINK}</nav>"
    report = f"<style>a</style><dl>{measured.SUMMARY}</dl>{links}{measured.PLACE}{measured.LAST}<p>below</p>"
    (tmp_path / "data/report/significance.json").write_text('{"best": {"system": "q"}}')
    (tmp_path / "data/report/report.html").write_text(report)
    monkeypatch.setattr(measured.timing, "measured", lambda _: {name: Measured(7.0) for name in GRAPH.stages})
    lines: list[str] = []
    measured.write(GRAPH, [], lines.append, provenance={"commit": "2" * 40, "changed": "code"})
    page = (tmp_path / ".retemper/report.html").read_text()
    assert (tmp_path / "data/report/report.html").read_text() == report, "what DVC keeps stays as it is"
    assert page.startswith("<style>a</style><dl><dt>Cost</dt><dd>28.0 s of work for q, in 4 stages.</dd></dl><nav>")
    links = re.findall(r'<a href="#([\w-]+)">', page)
    assert links == ["race-w", "latency", "lineage"] == re.findall(r'<h2 id="([\w-]+)">', page)
    race = dict(charts_of(page))["M on dev over time"]["data"]["values"]
    assert [(row["name"], row["x"], row["y"]) for row in race] == [("q", 7.0, 0.5), ("q", 14.0, 0.7), ("b", 7.0, 0.5), ("b", 28.0, 0.6)]
    assert page.endswith("<p>below</p>")
    assert lines[0] == "time to quality from w: q reaches M 0.6000, the best of b (b, after 28 s), after 14 s: 2.0 times as fast"
    assert lines[-1] == "page with this machine's times, and lineage: .retemper/report.html"
    measured.write(
        GRAPH, [Span("train@b", 0, 1, 2, "0", "Ran")], lines.append, provenance={"commit": "2" * 40, "changed": "code"}, below=tmp_path
    )
    assert f"timeline: {tmp_path}/.retemper/logs/timeline.html" in lines, "as of a retraining's worktree"
    assert lines[-1].endswith(f": {tmp_path}/.retemper/report.html")
    lines.clear()
    span = Span("train@b", 0, 1, 2, "0", "Ran")
    measured.write(GRAPH, [span], lines.append, provenance={"commit": "2" * 40, "changed": "code"}, below=None)
    assert not [line for line in lines if ".html" in line], "as of a tree that ends with its command"
    assert "Time to quality from w" in page
    assert "; commit 2222222 with changed code." in page, "the commit that the run began at, not git's when the page is written"
    assert '<td data-label="seconds">28.0</td>' in page  # encode@w, mine@w, train@b, encode@b
    assert [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr><th scope=\"row\" class=\"name\">[rs]<.*?</tr>", page)] == [
        ["r", "dev", "30", "20.2", "19.0", "31.5", "cpu,", "2", "threads"],
        ["s", "test", "100", "1.5", "cpu,", "2", "threads"],
    ]


def test_a_race_has_no_figures_of_replaced_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the run's table, which excludes them."""
    monkeypatch.chdir(tmp_path)
    parameters = {"report": {"metric": "M"}, "rounds": {"w": {"init": "base"}, "b": {"init": "w"}}, "adore": {"q": {"round": "w"}}}
    for name, value in {"w": 0.5, "b": 0.9, "q": 0.7}.items():
        write_json(tmp_path / f"data/metrics/{name}.json", {"dev": {"M": value}})
    write_json(tmp_path / "data/params.json", parameters)
    (tmp_path / "data/report").mkdir()
    (tmp_path / "data/report/report.html").write_text(measured.PLACE)
    monkeypatch.setattr(measured.timing, "measured", lambda _: {name: Measured(7.0) for name in GRAPH.stages})
    retrieve = {"cmd": "x", "outs": [{"path": "data/runs/b", "md5": "new.dir"}]}
    evaluate = {"cmd": "x", "deps": [{"path": "data/runs/b", "md5": "old.dir"}], "outs": [{"path": "data/metrics/b.json", "md5": "m"}]}
    for deps, told in (("new.dir", True), ("old.dir", False)):
        evaluate["deps"] = [{"path": "data/runs/b", "md5": deps}]
        write_json(tmp_path / "dvc.lock", {"schema": "2.0", "stages": {"retrieve@b": retrieve, "evaluate@b": evaluate}})
        lines: list[str] = []
        measured.write(GRAPH, [], lines.append, provenance={})
        assert ("0.9000" in "".join(lines)) == told, lines


@pytest.mark.parametrize(("best", "seconds"), [("star", 2), ("bm25", 4)])
def test_the_cost_line_is_of_the_best_system_alone(best: str, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of one whose name ends with its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/report").mkdir(parents=True)
    (tmp_path / "data/report/significance.json").write_text(json.dumps({"best": {"system": best}}))
    took = {"evaluate@pre_star": 1, "evaluate@star": 2, "evaluate_fuse@with_bm25": 3, "evaluate_bm25": 4}
    graph = Graph({name: Stage(name, (), ()) for name in took})
    line = measured.summary(graph, {name: Measured(float(value)) for name, value in took.items()}, {})
    assert line == f"{seconds}.0 s of work for {best}, in 1 stage."


def test_costs_are_those_of_the_models_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, content in {
        "data/embeddings/w/manifest.json": {"rows": 5000},
        "data/index_metrics/w.json": {"bytes_per_vector": 1536.1, "recall@100": 0.9987},
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(json.dumps(content))
    recorded = {
        "train@w": {"seconds": 75.0, "peak_mib": 1234.4},
        "encode@w": {"seconds": 10.0, "peak_mib": 900.0},
        "rerank@r": {"seconds": 3.0, "peak_mib": 5000.0},
        "adore@q": {"seconds": 30.0, "peak_mib": 800.0, "search_p50_ms": 0.5},
    }
    model_costs = costs.costs(GRAPH, recorded)
    assert model_costs["w"]["encode_ms"] == 2.0
    assert "r" not in model_costs, "what reorders a run has a table of its own"
    rows = re.findall(r"<tr><th scope=\"row\" class=\"name\">.*?</tr>", costs.cost_table(model_costs))
    cells = [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows]
    assert cells == [
        ["w", "1m15s", "10.0 s", "2.00", "1,536.1", "0.9987", "-", "-", "-", "1,234"],
        ["q", "30.0 s", "-", "-", "-", "-", "0.50", "-", "-", "800"],
    ]
    assert costs.cost_table(model_costs).count('data-value="75"') == 1, "times are sorted by their seconds"


def test_the_page_has_the_curves_of_the_graphs_pretrainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)

    def write_curve(name: str, quantity: str, *values: float) -> None:
        folder = tmp_path / "data/pretrain_curves" / name / "plots/metrics/train"
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{step}\t{value}\n" for step, value in enumerate(values))
        (folder / f"{quantity}.tsv").write_text(f"step\t{quantity}\n{lines}")

    names = ["pretrain@costa", "pretrain@mlm", "pretrain@unmade"]
    graph = Graph({name: Stage(name, (), ()) for name in names})
    assert not measured.pretraining(graph, {}).body, "nothing to show yet"
    write_curve("costa", "token_accuracy", 0.0, 0.25, 0.5)
    write_curve("mlm", "token_accuracy", 0.0, 0.5, 1.0)
    write_curve("costa", "alignment", 1.5, 0.5)
    write_curve("removed", "uniformity", -1.0, -2.0)
    body = measured.pretraining(graph, {}).html()
    charts = dict(charts_of(body))
    assert list(charts) == ["alignment over steps", "token accuracy over steps"]
    rows = charts["token accuracy over steps"]["data"]["values"]
    assert [(row["name"], row["x"], row["y"]) for row in rows] == [
        *(("costa", step, value) for step, value in enumerate((0.0, 0.25, 0.5))),
        *(("mlm", step, value) for step, value in enumerate((0.0, 0.5, 1.0))),
    ]
    assert re.findall(r'<li><span class="(s\d)"></span>(\w+)</li>', body) == [("s0", "costa"), ("s1", "mlm")]
    write_curve("costa", "loss", 9.0, 8.0)
    write_curve("mlm", "loss", 0.5, 0.25)
    sections = {"pretrain": {"costa": {"init": "base"}, "mlm": {"init": "base", "objective": "mlm"}}}
    charts = dict(charts_of(measured.pretraining(graph, sections).html()))
    assert list(charts)[:2] == ["loss (costa) over steps", "loss (mlm) over steps"]
    assert [row["y"] for row in charts["loss (mlm) over steps"]["data"]["values"]] == [0.5, 0.25]


def test_the_places_for_times_are_in_the_report() -> None:
    page = Path(measured.__file__).resolve().parents[2] / "tasks/report/page.html"
    assert [
        page.read_text(encoding="utf-8").count(place)
        for place in (measured.SUMMARY, measured.LINKS, measured.PLACE, measured.LAST_LINK, measured.LAST)
    ] == 5 * [1]


def test_a_timeline_shows_which_stages_ran_together_and_which_waited(charts_of: Callable[..., Any]) -> None:
    spans = [
        Span("train@a", 100, 101, 111, "0", "Ran"),
        Span("encode@b", 100, 111, 131, "1", "Ran"),
        Span(HOSTILE, 100, 100, 100, "", "Failed"),
    ]
    page = measured.timeline(spans)
    assert HOSTILE not in page
    assert "3 stages, 30.0 s of work in 31.0 s" in page
    rows = {row["name"]: row for row in dict(charts_of(page))["stages over time"]["data"]["values"]}
    assert list(rows) == [HOSTILE, "train@a", "encode@b"], "in the order they began"
    assert [(row["start"], row["end"], row["ready"]) for row in rows.values()] == [(0, 0, None), (1, 11, 0), (11, 31, 0)]
    assert rows["encode@b"]["note"] == "Ran, 20.0 s, starting at 11.0 s, device 1, waited 11.0 s"
    assert page.count('<table class="stack">') == 1
    embedded_spans = json.loads(re.findall(r'id="spans">(.*?)</script>', page)[0])
    assert embedded_spans[1] == {"stage": "encode@b", "ready": 100, "start": 111, "end": 131, "device": "1", "state": "Ran"}


def test_a_race_with_nothing_measured_says_so() -> None:
    section = measured.race_section(Race("w", (), ("b<",)), "M").html()
    assert "b&lt;" in section
    assert "<figure" not in section
    race = Race("w", (Chain("b", False, (Reached("w", 1, 0.5), Reached("b", 2, 0.6, at_least=True))),), ())
    assert "2.0 or more" in measured.race_section(race, "M").html()


LOCK = {
    "train@w": {
        "params": {"data/params.json": {"rounds.w": {"lr": HOSTILE}}, "data/code.json": {"train": "c0de" * 16}},
        "outs": [{"path": "data/encoders/w", "md5": "0123456789abcdef.dir"}],
    },
    "encode@w": {"outs": [{"path": "data/embeddings/w", "md5": "fedcba9876543210.dir"}]},
    "mine@w": {"outs": [{"path": "data/negatives/w", "md5": "aaaaaaaaaaaaaaaa.dir"}]},
}


def test_lineage_is_the_graph_with_times_digests_parameters_and_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = {"environment": {"processor": "One", "torch": "2.13.0"}, "by": "Ann <a@b>", "at": 0, "commit": "1" * 40, "seconds": 3.0}
    records = {"train@w": record, "encode@w": record | {"seconds": 8.0, "changed": "code", "cost": {"peak_mib": 850.4}}}
    spans = [Span("encode@w", 0, 1, 8, "", "Ran")]
    body = origins.body(GRAPH, LOCK, spans, took={"encode@w": Measured(7.0)}, records=records, provenance={})
    spec = dict(charts_of(body))["the graph of stages"]
    edges, nodes = (layer["data"]["values"] for layer in spec["layer"])
    assert [(row["name"], row["marked"], row["time"]) for row in nodes] == [
        ("train@w", 0, "3.0 s"),
        ("encode@w", 1, "7.0 s"),
        ("mine@w", 0, "unknown"),
    ]
    assert {(row["from"], row["to"]) for row in edges} == {("train@w", "encode@w"), ("encode@w", "mine@w")}
    table_rows = re.findall("<tr><th scope=.row.*?</tr>", body)
    rows = [[re.sub("<[^>]*>", "", cell) for cell in re.findall("<t[dh].*?</t[dh]>", row)] for row in table_rows]
    parameters = "rounds.w: {&#34;lr&#34;: &#34;&lt;script&gt;x&lt;/script&gt;&#34;}"
    author = "Ann, 1970-01-01 00:00 UTC, commit 1111111"
    assert rows[0] == ["train@w", "3.0 s", "cached", f"{author}, 3.0 s", "encoders/w 0123456789", "c0dec0dec0", parameters]
    assert rows[1][:5] == ["encode@w", "7.0 s", "ran", f"{author} with changed code, 8.0 s, 850 MiB", "embeddings/w fedcba9876"]
    assert rows[3:] == [["2 stages", "processor One, torch 2.13.0", "train@w, encode@w"], ["mine@w", "not recorded", "mine@w"]]
    assert "no commit" in body


def test_stages_come_after_what_they_read() -> None:
    order = origins.ordered(Graph({name: Stage(name, upstream, ()) for name, upstream in {"a": ("c",), "b": (), "c": ("b",)}.items()}))
    assert order == ["b", "c", "a"]


ANALYSIS = {
    "round": "w",
    "split": "dev",
    "queries": 1200,
    "depth": 200,
    "bm25_overlap": 0.25,
    "negatives_depth": 100,
    "negatives_overlap": {"bm25": 0.125, HOSTILE: None},
    "pairwise_errors": {"total": 1234.5, "top": 2.25, "depth": 200, "histogram": [{"from": 0, "queries": 0.75, "errors": 0.0}]},
    "alignment": 0.5,
    "uniformity": {"queries": -2.0, "documents": -3.0},
    "curves": [{"query": "q1", "scores": [0.5, 0.25]}],
    "gradients": {"random": {"loss": 0.5, "all": 2.0, "top": 1.0}},
    "maps": [{"query": "q1", "points": [{"kind": kind, "id": HOSTILE, "x": 0.5, "y": 1.0} for kind in ("query", "relevant", "w")]}],
}


def test_analyses_are_charts_with_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/analyses/late").mkdir(parents=True)
    (tmp_path / "data/analyses/late/analysis.json").write_text(json.dumps(ANALYSIS))
    by_name = analyses.load(Graph({name: Stage(name, (), ()) for name in ("analyses@late", "analyses@unmade", "train@w")}))
    assert list(by_name) == ["late"]
    body = analyses.body(by_name)
    charts = dict(charts_of(body))
    assert [
        row["value"]
        for row in charts["overlap of what a round finds with BM25&#39;s documents and with training negatives"]["data"]["values"]
    ] == [
        0.25,
        0.125,
    ]
    assert [(row["x"], row["y"]) for row in charts["share of queries by pairwise errors of a query"]["data"]["values"]] == [("0", 0.75)]
    assert [(row["x"], row["y"]) for row in charts["scores of the top documents, late"]["data"]["values"]] == [(1, 0.5), (2, 0.25)]
    assert [row["kind"] for row in charts["t-SNE of query q1 and its documents, late"]["data"]["values"]] == ["query", "relevant", "w"]
    assert "1,234.5" in body and "1,200" in body and HOSTILE not in body
    assert not analyses.body({})


def test_new_data_is_a_row_for_each_batch() -> None:
    shift = {"documents": {"auc": 0.512, "p": 0.31, "mean": 0.02, "batch": 100, "reference": 1000, "by": "champion/3"}}
    good = {"name": "001", "state": "accepted", "by": "gate", "documents": 1200, "new": 1100, "duplicates": 3, "queries": 7}
    good |= {"judgments": {"train": 9}, "shift": shift, "wrong": [], "odd": []}
    bad = good | {"name": "002", "state": "quarantined", "shift": {}, "wrong": ["1 malformed line: a<b"]}
    page = origins.batches_table([good, bad])
    rows = [re.sub(r"<[^>]*>", "|", row) for row in re.findall(r"<tr>.*?</tr>", page)[1:]]
    assert [cell for cell in rows[0].split("|") if cell] == [
        "001", "accepted", "1,200", "1,100", "3", "7", "train 9", "0.512", "0.31", "champion/3",
    ]  # fmt: skip
    assert rows[1].endswith("|1 malformed line: a&lt;b||")
    assert not origins.batches_table([])
