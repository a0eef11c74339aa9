"""Pages of what this machine measured: the report's with its times, and the timeline."""

import json
import re
from pathlib import Path

import pytest

from flows.repository.graph import Graph, Stage
from flows.results import pages
from flows.results.charts import Bar, Line, Point, bars, chart, spaced
from flows.results.quality import Chain, Race, Reached
from flows.results.timing import Measured, Span

HOSTILE = "<script>x</script>"
GRAPH = Graph(
    {
        name: Stage(name, tuple(up), ())
        for name, up in {
            "train@w": [],
            "encode@w": ["train@w"],
            "mine@w": ["encode@w"],
            "train@b": ["mine@w"],
            "encode@b": ["train@b"],
            "adore@q": ["encode@w"],
            "rerank@r": ["encode@w"],
            "rescore@s": ["encode@w"],
            "report": ["encode@b", "adore@q", "rerank@r", "rescore@s"],
        }.items()
    }
)


def test_the_page_is_the_report_and_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(
        "report: {metric: M}\nrounds: {w: {init: base}, b: {init: w}}\nadore: {q: {round: w}}\nrerank: {r: {}}\nrescore: {s: {}}\n"
    )
    for name, value in {"w": 0.5, "b": 0.6, "q": 0.7}.items():
        (tmp_path / "data/metrics").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"data/metrics/{name}.json").write_text(json.dumps({"dev": {"M": value}, "test": {"M": 0.9}}))
    (tmp_path / "data/latency").mkdir()
    taken = {"mean": 20.25, "p50": 19.0, "p95": 31.5}
    (tmp_path / "data/latency/r.json").write_text(
        json.dumps({"device": "cpu, 2 threads", "depth": 30, "milliseconds a query": {"dev": taken}})
    )
    (tmp_path / "data/latency/s.json").write_text(
        json.dumps({"device": "cpu, 2 threads", "depth": 100, "test": {"milliseconds a query": 1.5}})
    )
    (tmp_path / "data/report").mkdir()
    report = f"<style>a</style><p>above</p>{pages.PLACE}<p>below</p>"
    (tmp_path / "data/report/report.html").write_text(report)
    monkeypatch.setattr(pages.timing, "measured", lambda _: {name: Measured(7.0) for name in GRAPH.stages})
    told: list[str] = []
    pages.write(GRAPH, [], told.append)
    page = (tmp_path / ".retemper/report.html").read_text()
    assert (tmp_path / "data/report/report.html").read_text() == report, "what DVC keeps stays as it is"
    assert page.startswith("<style>a")
    assert page.endswith("<p>below</p>")
    assert told[0] == "time to quality from w: q reaches M 0.6000, the best of b (b, after 28 s), after 14 s: 2.0 times as fast"
    assert "Time to quality from w" in page
    assert '<td class="" data-label="seconds">28.0</td>' in page  # encode@w, mine@w, train@b, encode@b
    assert [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr><td class=\"name\">[rs]<.*?</tr>", page)] == [
        ["r", "dev", "30", "20.2", "19.0", "31.5", "cpu,", "2", "threads"],
        ["s", "test", "100", "1.5", "cpu,", "2", "threads"],
    ]


def test_costs_are_those_of_the_models_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, told in {
        "data/embeddings/w/manifest.json": {"rows": 5000},
        "data/index_metrics/w.json": {"bytes_per_vector": 1536.1, "recall@100": 0.9987},
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(json.dumps(told))
    measured = {
        "train@w": {"seconds": 75.0, "peak_mib": 1234.4},
        "encode@w": {"seconds": 10.0, "peak_mib": 900.0},
        "rerank@r": {"seconds": 3.0, "peak_mib": 5000.0},
        "adore@q": {"seconds": 30.0, "peak_mib": 800.0, "search_p50_ms": 0.5},
    }
    found = pages.costs(GRAPH, measured)
    assert found["w"]["encode_ms"] == 2.0
    assert "r" not in found, "what reorders a run has a table of its own"
    rows = re.findall(r"<tr><td class=\"name\">.*?</tr>", pages.cost_section(found))
    cells = [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    assert cells == [
        ["w", "1m15s", "10.0 s", "2.00", "1,536.1", "0.9987", "", "", "", "1,234"],
        ["q", "30.0 s", "", "", "", "", "0.50", "", "", "800"],
    ]
    assert pages.cost_section({}) == ""


def test_the_page_has_the_curves_of_the_graphs_pretrainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in {"params.yaml": "report: {metric: M}\n", "data/report/report.html": f"<style></style>{pages.PLACE}"}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    def plot(name: str, quantity: str, *values: float) -> None:
        folder = tmp_path / "data/pretrain_curves" / name / "plots/metrics/train"
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{step}\t{value}\n" for step, value in enumerate(values))
        (folder / f"{quantity}.tsv").write_text(f"step\t{quantity}\n{lines}")

    monkeypatch.setattr(pages.timing, "measured", lambda _: {})
    names = ["pretrain@costa", "pretrain@mlm", "pretrain@away", "report"]
    graph = Graph({name: Stage(name, (), ()) for name in names})
    pages.write(graph, [], print)
    assert not pages.PAGE.exists(), "nothing to show yet"
    plot("costa", "token_accuracy", 0.0, 0.25, 0.5)
    plot("mlm", "token_accuracy", 0.0, 0.5, 1.0)
    plot("costa", "alignment", 1.5, 0.5)
    plot("removed", "uniformity", -1.0, -2.0)
    pages.write(graph, [], print)
    page = pages.PAGE.read_text()
    charts = re.findall(r'<svg class="lines".*?</svg>', page)
    assert [re.findall(r'class="label"[^>]*>([^<]*)<', chart) for chart in charts] == [["alignment"], ["token accuracy"]]
    drawn = re.findall(r'<g class="(s\d)"><title>(\w+): ([\d.]+) at the end</title><polyline points="([^"]*)"', charts[1])
    assert [line[:3] for line in drawn] == [("s0", "costa", "0.5"), ("s1", "mlm", "1")]
    costa, mlm = ([tuple(map(float, pair.split(","))) for pair in line[3].split()] for line in drawn)
    assert costa[0] == mlm[0]
    assert costa[2][1] == mlm[1][1], "0.5 of both"
    assert [x for x, _ in costa] == [x for x, _ in mlm]
    assert costa[1][0] - costa[0][0] == pytest.approx(costa[2][0] - costa[1][0], abs=0.11)
    legend = re.findall(r'<li>.*?class="(s\d)".*?</svg>(\w+)</li>', page)
    assert legend == [("s0", "costa"), ("s1", "mlm")]


def test_the_place_for_times_is_in_the_report() -> None:
    page = Path(pages.__file__).resolve().parents[2] / "tasks/report/page.html"
    assert page.read_text(encoding="utf-8").count(pages.PLACE) == 1


def test_a_timeline_shows_which_stages_ran_together_and_which_waited() -> None:
    spans = [
        Span("train@a", 100, 101, 111, "0", "Ran"),
        Span("encode@b", 100, 111, 131, "1", "Ran"),
        Span(HOSTILE, 100, 100, 100, "", "Failed"),
    ]
    page = pages.timeline(spans)
    assert HOSTILE not in page
    assert "3 stages, 30.0 s of work in 31.0 s" in page
    box = re.compile(r'<title>([^:]*):[^<]*</title><rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"')
    boxes = {m[1]: (float(m[2]), float(m[3])) for m in box.finditer(page)}
    (a, wide), (b, wider) = boxes["train@a"], boxes["encode@b"]
    assert a + wide == pytest.approx(b, abs=0.2), "ends where the other begins"
    assert wider == pytest.approx(2 * wide, abs=0.2)
    assert page.count('class="waiting"') == 2
    assert page.count('<table class="stack">') == page.count('<div class="wide scrolls">') == page.count("<table") == 1, "for a phone"
    phone = page.partition("@media(max-width:600px)")[2]
    assert all(rule in phone for rule in (".stack tr{display:grid;", "content:attr(data-label);", "scroll sideways"))
    found = json.loads(re.findall(r'id="spans">(.*?)</script>', page)[0])
    assert found[1] == {"stage": "encode@b", "ready": 100, "start": 111, "end": 131, "device": "1", "state": "Ran"}


@pytest.mark.parametrize("whole", [0.0, 0.3, 31, 599, 3600, 3986, 10**6])
def test_times_on_an_axis_are_round_and_few(whole: float) -> None:
    marks = pages.time_ticks(whole)
    assert marks[0] == 0 and marks[-1] <= whole and len(marks) <= 9
    if whole in (599, 3986):
        assert marks == [120 * place for place in range(5)] if whole == 599 else [600 * place for place in range(7)]
    assert whole == 0 or len(marks) > 2


def test_a_line_goes_through_its_points() -> None:
    up, level_line = Line("up", [Point(0, 1.0), Point(10, 3.0, spread=0.5)]), Line("level", [Point(0, 2.0), Point(10, 2.0)], dotted=True)
    drawn = chart("M", [up, level_line], "s")
    (x0, y0), (x1, y1) = [tuple(map(float, pair.split(","))) for pair in re.findall(r'polyline points="([^"]*)"', drawn)[0].split()]
    (_, level), _ = [tuple(map(float, pair.split(","))) for pair in re.findall(r'polyline points="([^"]*)"', drawn)[1].split()]
    assert x0 < x1
    assert y0 > y1
    assert level == pytest.approx((y0 + y1) / 2, abs=0.1)
    assert spaced([10, 11, 40, 9], 15) == [24, 39, 54, 9]
    assert "waiting" not in bars("h", [Bar("a", 0, 1, 0, "n")], [(0, "0 s")])


def test_a_race_with_nothing_measured_says_so() -> None:
    section = pages.race_section(Race("w", (), ("b<",)), "M")
    assert "b&lt;" in section
    assert "<svg" not in section
    one = Race("w", (Chain("b", False, (Reached("w", 1, 0.5), Reached("b", 2, 0.6, at_least=True))),), ())
    assert "2.0 or more" in pages.race_section(one, "M")
