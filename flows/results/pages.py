"""What this machine measured, as pages: the report with times beside its figures, and a timeline of a run.

data/report is the same wherever it is made, bit for bit, so it holds no times; .retemper/report.html is that page with the times. It
also has the curves of the pre-trainings: with them, data/report would depend on every one, even if no round starts from it.
"""

import html
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.process.display import clock
from flows.repository.graph import Graph
from flows.repository.lock import read_lock
from flows.results import charts as figures
from flows.results import environments, metrics, quality, timing
from tasks.core.charts.curves import load_curves
from tasks.core.charts.svg import line_chart, line_style
from tasks.core.stage.files import read_json, write_text
from tasks.core.stage.params import read_yaml

REPORT = Path("data/report/report.html")
PAGE = Path(".retemper/report.html")
TIMELINE = Path(".retemper/logs/timeline.html")
LATENCY = Path("data/latency")
PRETRAINED = Path("data/pretrain_curves")
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)  # of a time axis, seconds
COSTLY = ("train", "adore", "encode", "index")  # stages of a model
FIGURES = {  # of a row of costs, and their formats
    "encode_ms": ".2f",
    "bytes": ".1f",
    "recall": ".4f",
    "search_p50_ms": ".2f",
    "search_p99_ms": ".2f",
    "search_batched_ms": ".3f",
}
PLACE = "<!-- measured -->"  # its place in the report's page


def write(graph: Graph, spans: Sequence[timing.Span], tell: Any) -> None:
    """Write the pages that have something to show; report where they are, and what the times come to."""
    if spans:
        write_text(TIMELINE, timeline(spans))
        tell(f"timeline: {TIMELINE}")
    if not REPORT.is_file() or "report" not in graph.stages:
        return
    sections = read_yaml(Path("params.yaml"))
    metric = str((sections.get("report") or {}).get("metric", "nDCG@10"))
    found = metrics.read_metrics()
    dev = {model: float(splits["dev"][metric]) for model, splits in found.items() if metric in splits.get("dev", {})}
    upstream = {name: stage.upstream for name, stage in graph.stages.items()}
    races = quality.races(sections, upstream, timing.measured(read_lock()), dev)
    parts = [cost_section(costs(graph, environments.of_artifacts(read_lock(), what="cost"))), latency_section(latencies(graph))]
    section = "".join([*(race_section(race, metric) for race in races), *parts, curves_section(graph)])
    if not section:
        PAGE.unlink(missing_ok=True)
        return
    report = REPORT.read_text(encoding="utf-8").replace("</style>", f"{figures.MARKS}</style>", 1)
    write_text(PAGE, report.replace(PLACE, section, 1))
    for race in races:
        for line in quality.verdicts(race, metric):
            tell(f"time to quality from {race.start}: {line}")
    tell(f"page with this machine's times and curves: {PAGE}")


def race_section(race: quality.Race, metric: str) -> str:
    """Time to quality as a section of the page."""
    lines = [
        figures.Line(
            chain.name,
            [figures.Point(p.seconds, p.quality, note=f"{p.model}: {p.quality:.4f} after {quality.seconds(p)}") for p in chain.points],
        )
        for chain in race.chains
    ]
    drawn = figures.scrolling(figures.chart(f"{metric} on dev", lines, f"seconds from {race.start}")) if lines else ""
    points = {point.model: point for chain in race.chains for point in chain.points}
    order = sorted(points.values(), key=lambda point: point.seconds)
    rows = [[p.model, f"{p.seconds:,.1f}{' or more' if p.at_least else ''}", f"{p.quality:.4f}"] for p in order]
    told = "".join(f"<li>{html.escape(line)}.</li>" for line in quality.verdicts(race, metric))
    missing = (
        f" Not shown: {html.escape(', '.join(race.unknown))}, some of whose stages did not run on this machine." if race.unknown else ""
    )
    return (
        f'<section><h2>Time to quality from {html.escape(race.start)}</h2>{drawn}<ul class="verdicts">{told}</ul>'
        f"{figures.table(['model', 'seconds', f'dev {metric}'], rows) if rows else ''}"
        '<p class="note">Wall clock on this machine along the critical path, from the end of '
        f"{html.escape(race.start)}'s training until a model could be served: training, encoding, indexing and mining, as if every stage "
        "began as soon as its inputs were ready. A stage is timed from its start until its outs are cached. Evaluation does not count."
        f"{missing}</p></section>"
    )


def costs(graph: Graph, measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What each model of the graph cost on this machine, as its stages recorded it, and the size and recall of its index."""
    found: dict[str, dict[str, float]] = {}
    for stage in graph.stages:
        kind, _, name = stage.partition("@")
        if kind in COSTLY and (figures := measured.get(stage)):
            row = found.setdefault(name, {})
            row |= {f"{kind}_{key}": value for key, value in figures.items() if not key.startswith("search_")}
            row |= {key: value for key, value in figures.items() if key.startswith("search_")}
    for name, row in found.items():
        manifest, index = Path("data/embeddings", name, "manifest.json"), Path("data/index_metrics", f"{name}.json")
        passages = int(read_json(manifest)["rows"]) if manifest.is_file() else 0
        if passages and "encode_seconds" in row:
            row["encode_ms"] = 1000 * row["encode_seconds"] / passages
        if index.is_file():
            told = read_json(index)
            row["bytes"] = float(told["bytes_per_vector"])
            recall = next((value for key, value in told.items() if key.startswith("recall@")), None)
            row |= {} if recall is None else {"recall": float(recall)}
    return found


def cost_section(found: Mapping[str, Mapping[str, float]]) -> str:
    """What models cost, as a section of the page."""
    if not found:
        return ""
    rows = []
    for name, row in found.items():
        trained = row.get("train_seconds", row.get("adore_seconds"))
        peaks = [value for key, value in row.items() if key.endswith("_peak_mib")]
        cells = [clock(trained) if trained is not None else "", clock(row["encode_seconds"]) if "encode_seconds" in row else ""]
        cells += [f"{row[key]:,{form}}" if key in row else "" for key, form in FIGURES.items()]
        rows.append([name, *cells, f"{max(peaks):,.0f}" if peaks else ""])
    header = [
        "model",
        "training",
        "encoding",
        "ms a passage",
        "bytes a passage",
        "recall",
        "search ms, median",
        "99 %",
        "all at once",
        "peak MiB",
    ]
    return (
        f"<section><h2>Cost</h2>{figures.table(header, rows)}"
        '<p class="note">As its stages recorded it on this machine. Encoding is of all passages, less where some were taken over. '
        "Search is of the index, without encoding the query: dev queries one at a time, and all at once. Recall is that of the index "
        "against exact search. Peak memory is that of the largest of its stages, imports included.</p></section>"
    )


def latencies(graph: Graph) -> dict[str, Any]:
    """What rerank and rescore stages of the graph measured, by system."""
    names = [name.partition("@")[2] for name in graph.stages if name.startswith(("rerank@", "rescore@"))]
    return {name: read_json(path) for name in names if (path := LATENCY / f"{name}.json").is_file()}


def latency_section(found: Mapping[str, Any]) -> str:
    """Latency of the systems that reorder a run, as a section of the page."""
    rows = []
    for name, values in found.items():
        for split in ("dev", "test"):
            taken = (values.get("milliseconds a query") or {}).get(split) or (values.get(split) or {}).get("milliseconds a query")
            if taken is None:
                continue
            parts = taken if isinstance(taken, dict) else {"mean": taken}
            cells = [f"{parts[key]:,.1f}" if key in parts else "" for key in ("mean", "p50", "p95")]
            rows.append([name, split, str(values.get("depth", "")), *cells, str(values.get("device", ""))])
    if not rows:
        return ""
    header = ["system", "split", "depth", "ms a query", "median", "95th percentile", "measured on"]
    return (
        f"<section><h2>Latency</h2>{figures.table(header, rows)}"
        '<p class="note">Milliseconds per query to reorder the run\'s first documents, on top of the search that found them. '
        "Rerankers take one query at a time, as a search box would; rescoring takes all at once, so its mean is a throughput.</p></section>"
    )


def curves_section(graph: Graph) -> str:
    """The curves of the graph's pre-trainings, a chart for each quantity, as a section of the page."""
    curves = load_curves(PRETRAINED, [name.partition("@")[2] for name in graph.stages if name.startswith("pretrain@")])
    order = list(dict.fromkeys(curve.name for found in curves.values() for curve in found))
    if not order:
        return ""
    legend = "".join(
        f'<li><svg viewBox="0 0 26 8"><line class="{line_style(place)}" x1="0" y1="4" x2="26" y2="4"/></svg>{html.escape(name)}</li>'
        for place, name in enumerate(order)
    )
    charts = "".join(line_chart(quantity.replace("_", " "), found, order) for quantity, found in curves.items())
    return (
        f'<section><h2>Pre-training</h2><ul class="legend">{legend}</ul><div class="charts">{charts}</div>'
        '<p class="note">Optimizer steps run from left to right. loss is the weighted sum of both losses, comparable only between '
        "equal objectives; accuracy is the share of texts whose nearest candidate is their own, token accuracy that of masked tokens; "
        "alignment and uniformity are of the texts' vectors; lower is better for both, and a uniformity near 0 is a collapse.</p></section>"
    )


def time_ticks(whole: float) -> list[float]:
    """At most nine round times, in seconds, from 0 to `whole`."""
    step = next((step for step in STEPS if whole <= 8 * step), whole / 8)
    return [step * place for place in range(int(whole / step) + 1)] if step else [0.0]


def timeline(spans: Sequence[timing.Span]) -> str:
    """Every stage of a run as a bar over time."""
    begin = min(span.ready for span in spans)
    kinds = list(dict.fromkeys(span.stage.partition("@")[0] for span in spans))
    order = sorted(spans, key=lambda span: (span.start, span.stage))

    def bar(span: timing.Span) -> figures.Bar:
        waited = f", waited {clock(span.start - span.ready)}" if span.device and span.start - span.ready > 1 else ""
        where = f", device {span.device}{waited}" if span.device else ""
        note = f"{span.stage}: {span.state}, {clock(span.end - span.start)}, starting at {clock(span.start - begin)}{where}"
        kind = kinds.index(span.stage.partition("@")[0])
        return figures.Bar(span.stage, span.start - begin, span.end - begin, kind, note, span.ready - begin if span.device else None)

    whole = max(span.end for span in spans) - begin
    busy = sum(span.end - span.start for span in spans)
    rows = [
        [s.stage, f"{s.start - begin:.1f}", f"{s.end - begin:.1f}", f"{s.end - s.start:.1f}", f"{s.start - s.ready:.1f}", s.device, s.state]
        for s in order
    ]
    marks = [(mark, clock(mark).replace(".0 s", " s")) for mark in time_ticks(whole)]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin))
    body = (
        f'<p class="note">{when}. {len(spans)} stages, {clock(busy)} of work in {clock(whole)}. Bars run from a stage\'s start until '
        "its outs are cached; a dotted line before one is the wait for a device and for DVC to start.</p>"
        f"{figures.scrolling(figures.bars('time from the start', [bar(span) for span in order], marks))}"
        + figures.table(["stage", "start, s", "end, s", "seconds", "waited", "device", "state"], rows)
        + f'<script type="application/json" id="spans">{embedded(spans)}</script>'
    )
    return figures.page("Timeline of a run", body)


def embedded(spans: Sequence[timing.Span]) -> str:
    """The same as JSON, for programs."""
    return json.dumps([vars(span) for span in spans]).replace("<", "\\u003c")
