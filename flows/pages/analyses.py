"""The papers' analyses of rounds (stage analyses), as charts with their figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flows.repository.graph import Graph
from tasks.core.charts.page import table
from tasks.core.charts.vega import Line, Point, bars, figure, legend, lines, scatter
from tasks.core.files import read_json

FOLDER = Path("data/analyses")
MAPPED = ("query", "relevant", "both", "bm25")  # kinds of points, in the legend's order; any other is the round's
OVERVIEW = (
    "Errors are pairwise errors a query, over the whole corpus and in as many top documents as the depth says (STAR and ADORE, Eq. 5 and "
    "6, Table 1). Alignment is the mean squared distance of a query and its relevant documents, uniformity the log mean kernel of random "
    "pairs (Wang and Isola 2020); lower is better for both."
)
OVERLAPS = (
    "The share of a round's own top documents that BM25 finds too (ANCE, Table 6; LTRe, Fig. 3c), and of its own hardest negatives that "
    "a source of training negatives holds (STAR and ADORE, Fig. 4a; LTRe, Fig. 3d): those of an earlier model overlap less as training "
    "continues, those of BM25 least."
)
GRADIENTS = (
    "Loss and gradient norm over some training batches, by layers. ANCE (Fig. 4) finds that random and in-batch negatives soon lose "
    "their gradients, and that negatives that the model itself ranks high keep them."
)
ERRORS = (
    "How many errors queries have, and which share of all errors they hold (STAR and ADORE, Fig. 3): few hard queries hold most of them."
)
CURVES = (
    "The scores of the top documents of some queries, minus the query's mean score over the corpus (ANCE, Fig. 3): few score far above "
    "the rest."
)
MAPS = "t-SNE of a query, its relevant documents, and the top ones of BM25, of the round, or of both (ANCE, Fig. 1; LTRe, Fig. 1)."


def load(graph: Graph) -> dict[str, Any]:
    """The analyses of the graph that exist, by name."""
    names = [name.partition("@")[2] for name in graph.stages if name.startswith("analyses@")]
    return {name: read_json(path) for name in names if (path := FOLDER / name / "analysis.json").is_file()}


def body(analyses: Mapping[str, Any]) -> Markup:
    """The HTML of all analyses; empty without any."""
    if not analyses:
        return Markup("")
    parts = [_overview(analyses), _overlaps(analyses), _gradients(analyses), _errors(analyses)]
    parts += [_curves(name, analysis) + _maps(name, analysis) for name, analysis in analyses.items()]
    return Markup("").join(parts)


def _note(text: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(text)


def _overview(analyses: Mapping[str, Any]) -> Markup:
    header = [
        "analysis",
        "round",
        "split",
        "queries",
        "total errors",
        "top errors",
        "depth",
        "alignment",
        "uniformity, queries",
        "uniformity, documents",
    ]
    rows = [
        [
            name,
            analysis["round"],
            analysis["split"],
            f"{analysis['queries']:,}",
            f"{analysis['pairwise_errors']['total']:,.1f}",
            f"{analysis['pairwise_errors']['top']:.2f}",
            f"{analysis['pairwise_errors']['depth']:,}",
            f"{analysis['alignment']:.4f}",
            *(f"{analysis['uniformity'][part]:.3f}" for part in ("queries", "documents")),
        ]
        for name, analysis in analyses.items()
    ]
    return table(header, rows) + _note(OVERVIEW)


def depth_of(analysis: Mapping[str, Any]) -> int:
    """The depth at which sources of negatives were compared. Analyses before 2026-12 do not record it."""
    return int(analysis.get("negatives_depth", analysis["depth"]))


def _overlaps(analyses: Mapping[str, Any]) -> Markup:
    rows = [(name, f"BM25's top {analysis['depth']}", analysis["bm25_overlap"]) for name, analysis in analyses.items()]
    rows += [
        (name, f"top {depth_of(analysis)} negatives of {source}", share)
        for name, analysis in analyses.items()
        for source, share in analysis["negatives_overlap"].items()
    ]
    known = [row for row in rows if row[2] is not None]
    if not known:
        return Markup("")
    order = list(dict.fromkeys(source for _, source, _ in known))
    chart = figure(bars(known, "overlap", order), "overlap of what a round finds with BM25's documents and with training negatives")
    cells = table(["analysis", "with", "overlap"], [[name, source, f"{share:.4f}"] for name, source, share in known], words={"with"})
    return Markup("<h3>Overlap</h3>{}{}{}{}").format(
        legend(order),
        chart,
        cells,
        _note(OVERLAPS),
    )


def _gradients(analyses: Mapping[str, Any]) -> Markup:
    parts = []
    for name, analysis in analyses.items():
        groups = [part for values in analysis["gradients"].values() for part in values if part != "loss"]
        order, sources = list(dict.fromkeys(groups)), analysis["gradients"]
        if not sources:
            continue
        rows = [(source, part, values[part]) for source, values in sources.items() for part in order]
        cells = [[source, f"{values['loss']:.4f}", *(f"{values[part]:.4f}" for part in order)] for source, values in sources.items()]
        chart = figure(bars(rows, f"gradient norm, {name}", order), f"gradient norms of {name} by source of negatives and layers")
        parts.append(Markup("{}{}{}").format(legend(order), chart, table(["negatives", "loss", *order], cells)))
    if not parts:
        return Markup("")
    return Markup("<h3>Gradients by source of negatives</h3>{}{}").format(
        Markup("").join(parts),
        _note(GRADIENTS),
    )


def _errors(analyses: Mapping[str, Any]) -> Markup:
    rows = {name: {row["from"]: row for row in analysis["pairwise_errors"]["histogram"]} for name, analysis in analyses.items()}
    starts = sorted({start for found in rows.values() for start in found})  # a bin without a query is not recorded
    bins = [
        (name, str(start), float(found[start][key]) if start in found else 0.0, key)
        for name, found in rows.items()
        for start in starts
        for key in ("queries", "errors")
    ]
    if not bins:
        return Markup("")
    order = list(analyses)
    charts = Markup("").join(
        figure(
            lines(
                [Line(n, [Point(at, v) for name, at, v, kind in bins if name == n and kind == key]) for n in order],
                "errors of a query, from",
                f"share of {key}",
                order=order,
                dots=True,
            ),
            f"share of {key} by pairwise errors of a query",
        )
        for key in ("queries", "errors")
    )
    return Markup('<h3>Pairwise errors</h3>{}<div class="charts">{}</div>{}').format(
        legend(order),
        charts,
        _note(ERRORS),
    )


def _curves(name: str, analysis: Mapping[str, Any]) -> Markup:
    if not analysis["curves"]:
        return Markup("")
    drawn = [Line(row["query"], [Point(rank, score) for rank, score in enumerate(row["scores"], 1)]) for row in analysis["curves"]]
    chart = figure(lines(drawn, "rank", "score above the mean"), f"scores of the top documents, {name}")
    return Markup("<h3>Scores by rank: {}</h3>{}{}").format(
        name,
        chart,
        _note(CURVES),
    )


def _maps(name: str, analysis: Mapping[str, Any]) -> Markup:
    if not analysis["maps"]:
        return Markup("")
    order = list(dict.fromkeys([*MAPPED, *(point["kind"] for row in analysis["maps"] for point in row["points"])]))
    charts = Markup("").join(
        figure(scatter(row["points"], order), f"t-SNE of query {row['query']} and its documents, {name}") for row in analysis["maps"]
    )
    return Markup('<h3>Maps: {}</h3>{}<div class="charts">{}</div>{}').format(
        name,
        legend(order),
        charts,
        _note(MAPS),
    )
