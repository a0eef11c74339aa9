"""Pages with this machine's measurements: the report with times added to its figures, and a timeline of a run.

data/report is the same wherever it is made, bit for bit, so it has no times; .retemper/report.html is that page with times. It also has
the curves of pre-trainings and the analyses: if data/report had them, it would depend on each of them.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from flows.measuring import environments, timing
from flows.pages import analyses, costs, origins, quality
from flows.process.display import clock
from flows.repository.graph import Graph
from flows.repository.lock import read_lock
from flows.results import generations, metrics
from flows.storage import makings
from flows.storage.cache import cache_folder
from tasks.core.charts.curves import load_curves, losses_by_kind
from tasks.core.charts.page import Cell, page, table
from tasks.core.charts.vega import Line, Point, curve_lines, figure, legend, lines
from tasks.core.charts.vega import Span as Bar
from tasks.core.charts.vega import spans as drawn_spans
from tasks.core.files import read_json, write_text
from tasks.core.metrics.selection import metric_of
from tasks.core.params.sections import FROZEN, read_parameters
from tasks.core.plurals import counted

REPORT = Path("data/report/report.html")
SIGNIFICANCE = Path("data/report/significance.json")
PAGE = Path(".retemper/report.html")
TIMELINE = Path(".retemper/logs/timeline.html")
PRETRAINED = Path("data/pretrain_curves")
# Places in the report's page.
PLACE, LINKS, SUMMARY = "<!-- measured -->", "<!-- measured links -->", "<!-- measured summary -->"
ADDED = re.compile("<!-- added -->.*?<!-- end -->", re.DOTALL)
LAST, LAST_LINK = "<!-- lineage -->", "<!-- lineage link -->"


class Section(NamedTuple):
    """A section of the page; `name` is its anchor."""

    name: str
    title: str
    body: Markup
    note: str = ""

    def link(self) -> Markup:
        """A link to the section."""
        return Markup('<a href="#{}">{}</a>\n').format(self.name, self.title)

    def html(self) -> Markup:
        """The section with its heading and note."""
        note = Markup('<p class="note">{}</p>').format(self.note) if self.note else ""
        return Markup('<section><h2 id="{}">{}</h2>{}{}</section>').format(self.name, self.title, self.body, note)


def write(graph: Graph, spans: Sequence[timing.Span], tell: Any, *, provenance: Mapping[str, str], below: Path | None = Path()) -> None:
    """Write the pages that have something to show; report their paths, and the verdicts on time to quality.

    `provenance`: by whom and at which commit the run's code was frozen (flows.storage.makings.current_provenance). `below`: the current
    folder, as shown to the user; None if it is removed after the command, so that no path is shown.
    """
    if spans:
        write_text(TIMELINE, timeline(spans))
        if below is not None:
            tell(f"timeline: {below / TIMELINE}")
    if not REPORT.is_file():
        return
    lock, sections = read_lock(), read_parameters(FROZEN)  # params.yaml may be edited during a run
    metric = metric_of(sections)
    all_metrics, _ = generations.current_metrics(metrics.read_metrics(), lock)
    dev = {model: float(splits["dev"][metric]) for model, splits in all_metrics.items() if metric in splits.get("dev", {})}
    took, upstream = timing.measured(lock), {name: stage.upstream for name, stage in graph.stages.items()}
    races = quality.races(sections, upstream, took, quality=dev)
    cost = costs.costs(graph, environments.of_artifacts(lock, field="cost"))
    records = makings.of_stages(cache_folder(), lock)
    parts = [
        *(race_section(race, metric) for race in races),
        Section("cost", "Cost", Markup(costs.cost_table(cost) if cost else ""), costs.COST_NOTE),
        Section("latency", "Latency", Markup(costs.latency_table(costs.latencies(graph))), costs.LATENCY_NOTE),
        pretraining(graph, sections),
        Section("analyses", "Analyses", analyses.body(analyses.load(graph))),
        Section(
            "batches", "New data", origins.batches_table(read_json(origins.INTAKE) if origins.INTAKE.exists() else []), origins.BATCHES_NOTE
        ),
    ]
    last = Section("lineage", "Lineage", origins.body(graph, lock, spans, took=took, records=records, provenance=provenance))
    report = REPORT.read_text(encoding="utf-8").replace(LAST_LINK, last.link(), 1).replace(LAST, last.html(), 1)
    write_text(PAGE, fill_page(report, [part for part in parts if part.body], summary(graph, took, cost)))
    for race in races:
        for line in quality.verdicts(race, metric):
            tell(f"time to quality from {race.start}: {line}")
    if below is not None:
        tell(f"page with this machine's times, and lineage: {below / PAGE}")


def add(sections: Sequence[Section]) -> None:
    """Add `sections` to the page, replacing those that were added before."""
    report = PAGE if PAGE.is_file() else REPORT
    if not report.is_file():
        return
    text = report.read_text(encoding="utf-8")
    page = ADDED.sub("", text)
    for place, parts in ((LINKS, [section.link() for section in sections]), (PLACE, [section.html() for section in sections])):
        page = page.replace(place, f"<!-- added -->{''.join(parts)}<!-- end -->{place}" if parts else place, 1)
    if page != text:
        write_text(PAGE, page)


def fill_page(report: str, parts: Sequence[Section], cost: str) -> str:
    """The report's page with further sections, links to them, and a line in its summary."""
    links = Markup("").join(part.link() for part in parts)
    row = Markup("<dt>Cost</dt><dd>{}</dd>").format(cost) if cost else Markup("")
    bodies = Markup("").join(part.html() for part in parts)
    for place, text in ((SUMMARY, row), (LINKS, links + Markup(LINKS)), (PLACE, bodies + Markup(PLACE))):  # `add` needs the places
        report = report.replace(place, text, 1)
    return report


def best_system() -> str:
    """The best system, as the report chose it; empty before there is a report."""
    return str(read_json(SIGNIFICANCE)["best"]["system"]) if SIGNIFICANCE.is_file() else ""


def summary(graph: Graph, took: Mapping[str, timing.Measured], cost: Mapping[str, Mapping[str, float]]) -> str:
    """A line on what the best system cost on this machine: the work of all stages that it depends on, and of serving it."""
    best = best_system()
    evaluations = [name for name in graph.stages if name.startswith("evaluate")]
    last = next((name for name in evaluations if best in (name.partition("@")[2], name.removeprefix("evaluate_"))), "")
    upstream = graph.upstream_of([last]).stages if last else {}
    known = [took[name].seconds for name in upstream if name in took]
    parts = []
    if known:
        part = f", of which {len(known)} ran in this tree" if len(known) < len(upstream) else ""
        parts.append(f"{clock(sum(known))} of work for {best}, in {counted(len(upstream), 'stages')}{part}.")
    if row := cost.get(best):
        figures = {"a passage to encode": "encode_ms", "a search, median": "search_p50_ms"}
        if cost_line := ", ".join(f"{row[key]:.2f} ms {label}" for label, key in figures.items() if key in row):
            parts.append(f"{cost_line}.")
    return " ".join(parts)


def race_section(race: quality.Race, metric: str) -> Section:
    """The section on time to quality: a chart, verdicts, and a table."""
    drawn = [
        Line(chain.name, [Point(p.seconds, p.quality, note=f"{p.model}: {p.quality:.4f} after {quality.seconds(p)}") for p in chain.points])
        for chain in race.chains
    ]
    chart = (
        legend([one.name for one in drawn])
        + figure(lines(drawn, f"seconds from {race.start}", f"dev {metric}", height=260, dots=True), f"{metric} on dev over time")
        if drawn
        else Markup("")
    )
    points = {point.model: point for chain in race.chains for point in chain.points}
    order = sorted(points.values(), key=lambda point: point.seconds)
    rows = [[p.model, f"{p.seconds:,.1f}{' or more' if p.at_least else ''}", f"{p.quality:.4f}"] for p in order]
    items = Markup("").join(Markup("<li>{}.</li>").format(line) for line in quality.verdicts(race, metric))
    missing = f" Not shown: {', '.join(race.unknown)}, some of whose stages did not run on this machine." if race.unknown else ""
    return Section(
        f"race-{race.start}",
        f"Time to quality from {race.start}",
        chart + Markup('<ul class="verdicts">{}</ul>').format(items) + (table(["model", "seconds", f"dev {metric}"], rows) if rows else ""),
        f"Wall clock on this machine along the critical path, from the end of {race.start}'s training until a model could be served: "
        "training, encoding, indexing and mining, as if every stage began as soon as its inputs were ready. A stage is timed from its "
        f"start until its outs are cached. Evaluation does not count.{missing}",
    )


def pretraining(graph: Graph, sections: Mapping[str, Any]) -> Section:
    """The curves of the graph's pre-trainings, a chart for each quantity; `sections`: the parameters of the run."""
    kinds = {name: str(entry.get("objective", "costa")) for name, entry in (sections.get("pretrain") or {}).items()}
    curves = load_curves(PRETRAINED, [name.partition("@")[2] for name in graph.stages if name.startswith("pretrain@")])
    order = list(dict.fromkeys(curve.name for found in curves.values() for curve in found))
    charts = Markup("").join(
        figure(curve_lines(found, quantity.replace("_", " "), order), f"{quantity.replace('_', ' ')} over steps")
        for quantity, found in losses_by_kind(curves, kinds).items()
    )
    return Section(
        "pretraining",
        "Pre-training",
        Markup('{}<div class="charts">{}</div>').format(legend(order), charts) if order else Markup(""),
        "Optimizer steps run from left to right. loss is the weighted sum of both losses, comparable only between equal objectives; each "
        "has a chart; accuracy is the share of texts whose nearest candidate is their own, token accuracy that of masked tokens; alignment "
        "and uniformity are of the texts' vectors; lower is better for both, and a uniformity near 0 is a collapse.",
    )


def timeline(spans: Sequence[timing.Span]) -> str:
    """Every stage of a run as a bar over time."""
    begin = min(span.ready for span in spans)
    order = sorted(spans, key=lambda span: (span.start, span.stage))

    def bar(span: timing.Span) -> Bar:
        waited = f", waited {clock(span.start - span.ready)}" if span.device and span.start - span.ready > 1 else ""
        where = f", device {span.device}{waited}" if span.device else ""
        note = f"{span.state}, {clock(span.end - span.start)}, starting at {clock(span.start - begin)}{where}"
        kind = span.stage.partition("@")[0]
        return Bar(span.stage, span.start - begin, span.end - begin, kind, note, span.ready - begin if span.device else None)

    total = max(span.end for span in spans) - begin
    busy = sum(span.end - span.start for span in spans)
    rows: list[list[str | Cell]] = [
        [s.stage, f"{s.start - begin:.1f}", f"{s.end - begin:.1f}", f"{s.end - s.start:.1f}", f"{s.start - s.ready:.1f}", s.device, s.state]
        for s in order
    ]
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin))
    body = Markup('<p class="note">{}</p>{}{}<script type="application/json" id="spans">{}</script>').format(
        f"{started}. {counted(len(spans), 'stages')}, {clock(busy)} of work in {clock(total)}. Bars run from a stage's start until its "
        "outs are cached; a dotted line before one is the wait for a device and for DVC to start.",
        figure(drawn_spans([bar(span) for span in order]), "stages over time"),
        table(["stage", "start, s", "end, s", "seconds", "waited", "device", "state"], rows),
        Markup(embedded(spans)),
    )
    return page("Timeline of a run", body)


def embedded(spans: Sequence[timing.Span]) -> str:
    """The spans as JSON, for programs, safe to embed in HTML."""
    return json.dumps([vars(span) for span in spans]).replace("<", "\\u003c")
