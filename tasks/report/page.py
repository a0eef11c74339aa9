"""The whole report as one self-contained page, laid out by page.html."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tasks.core.charts.curves import Curve
from tasks.core.charts.page import confidence, head, percent, scripts, table
from tasks.core.charts.vega import Interval, Line, Point, curve_lines, figure, intervals, legend, lines
from tasks.core.plurals import counted
from tasks.core.sources.datasets import PATH_KINDS, parse_dataset
from tasks.core.statistics.paired_tests import mean_interval
from tasks.core.statistics.power import WANTED
from tasks.report import summary, weaknesses
from tasks.report.duel import compare
from tasks.report.examples import Examples
from tasks.report.params import Report
from tasks.report.significance import PAPERS, Pair, headline, shared_documents_note
from tasks.report.systems import System
from tasks.report.table import Table

CURVES = {  # curves that a training records in addition to its loss
    "accuracy": "Share of the batch's queries whose positive scores above all its negatives.",
    "mrr_10": "1 / rank of the first relevant document among the first ten, else 0, in a search of all documents; mean over the batch.",
    "hit_10": "Share of the batch's queries with a relevant document among the first ten of that search.",
    "recall": "Share of a query's relevant documents that are in its whole list of that search; mean over the batch.",
    "overlap": "Share of the documents found by that search, without the known positives, that are among the negatives trained on.",
    "gradient_norm": "Length of the gradient before it is clipped.",
    "lr": "The learning rate.",
}


@dataclass(frozen=True)
class Contents:
    """Everything the page shows. `duel`: the best model and the system it is compared with; None if there is only one system."""

    dataset: str
    encoder: str
    in_common: str  # settings that all trained rounds share
    cut_short: str
    unjudged: str  # note on queries that no human judged
    in_two_splits: str  # note on queries that are
    titles: bool
    statistics: Mapping[str, Any]
    sections: Mapping[str, Any]  # of params.yaml
    params: Report
    systems: Sequence[System]
    compared: Sequence[System]  # those of which the best was chosen
    groups: Mapping[str, Mapping[str, str]]  # by split: the group of each query, by shared relevant documents
    best: System
    chosen_on: str
    table: Table
    letters: Mapping[str, str]
    pairs: Mapping[str, Sequence[Pair]]
    duel: tuple[System, System] | None
    curves: Mapping[str, Sequence[Curve]]
    learning: Sequence[Line]
    indexes: Mapping[str, Mapping[str, Any]]
    fusions: Mapping[str, Mapping[str, Any]]  # fusion.json of each: the setting chosen on dev, and the grid
    weaknesses: weaknesses.Weaknesses | None
    examples: Examples | None


def render(contents: Contents) -> str:
    """The page as HTML. Every text from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "counted": counted,
        "p": p_value,
        "figure": format_value,
        "short_source": short_source,
        "without_folders": summary.without_folders,
        "confidence": confidence,
    }
    environment.filters |= filters | {"signed": lambda value: f"{value:+.4f}"}
    split, names = contents.table.split, [curve.name for curves in contents.curves.values() for curve in curves]
    order, weak_spots = list(dict.fromkeys(names)), contents.weaknesses
    has_duel = contents.duel and all(split in system.values for system in contents.duel)
    return environment.get_template("page.html").render(
        c=contents,
        head=head(f"Retemper: {short_source(contents.dataset)}"),
        scripts=scripts(),
        summary=summary.rows(
            contents.sections,
            contents.statistics,
            encoder=contents.encoder,
            best=contents.best,
            pairs=contents.pairs[split],
            indexes=contents.indexes,
            weaknesses=weak_spots,
            p_value=p_value,
        ),
        confidence=confidence(contents.params.alpha),
        queries={name: len(next(s.queries[name] for s in contents.systems if name in s.queries)) for name in contents.pairs},
        means=means(contents, split),
        duel=compare(*contents.duel, split) if contents.duel and has_duel else None,
        groups=weaknesses.chart(weak_spots) if weak_spots and weak_spots.groups else None,
        losing=weak_spots.losing() if weak_spots else [],
        curves=[figure(curve_lines(curves, metric, order), f"{metric} over steps") for metric, curves in contents.curves.items()],
        explained={name: meaning for name, meaning in CURVES.items() if name in contents.curves},
        legend=legend(order),
        learning=learning(contents),
        indexes=indexes(contents.indexes),
        fusions={name: fusion(name, record) for name, record in contents.fusions.items()},
        headline=headline(contents.pairs[split], contents.duel),
        p_value=p_value,
        shared={name: shared_documents_note(headline(pairs, contents.duel)) for name, pairs in contents.pairs.items()},
        tests=contents.params.tests,
        levels=PAPERS,
        wanted=percent(WANTED),
    )


def means(contents: Contents, split: str) -> Markup:
    """A chart of the means of the report's metric, with intervals."""
    params, metric, alpha = contents.params, contents.params.metric, contents.params.alpha
    rows = []
    for s in contents.systems:
        if split in s.values:
            low, high = mean_interval(s.values[split], alpha, params.drawn(s.queries[split], contents.groups[split]))
            rows.append(Interval(s.name, s.metrics[split][metric], low, high, "best" if s.name == contents.best.name else "plain"))
    level = confidence(alpha)
    return figure(intervals(rows, metric, unit=f"{level} interval"), f"{metric} of each system with {level} intervals")


def learning(contents: Contents) -> Markup | None:
    """A chart of quality over the steps of chains of trainings; None if there is no chain."""
    curves, metric = contents.learning, f"dev {contents.params.metric}"
    if not curves:
        return None
    chart = figure(lines(curves, "optimizer steps", metric, height=240, dots=True), f"{metric} over optimizer steps")
    return legend([line.name for line in curves]) + chart


def indexes(figures_of: Mapping[str, Mapping[str, Any]]) -> Markup | None:
    """A table of the indexes' figures; None if there are no indexes."""
    columns = list(dict.fromkeys(key for figures in figures_of.values() for key in figures))
    rows = [[name, *(format_value(figures[key]) if key in figures else "-" for key in columns)] for name, figures in figures_of.items()]
    return table(["round", *(column.replace("_", " ") for column in columns)], rows) if rows else None


def fusion(name: str, record: Mapping[str, Any]) -> Markup:
    """The grid from which a fusion's weight or k was chosen, as a chart and a table; empty without a grid."""
    setting = "k" if record["method"] == "rrf" else "weight"
    grid = record["grid"]
    if not grid:
        return Markup("")
    measured = f"{record['chosen_on']} {record['measure']}"
    points = [Point(row[setting], row[record["measure"]], note=f"{row[record['measure']]:.4f}") for row in grid]
    chart = figure(lines([Line(name, points)], setting, measured, height=120, dots=True), f"{measured} of {name} by {setting}")
    rows = table([setting, measured], [[f"{row[setting]:g}", f"{row[record['measure']]:.4f}"] for row in grid])
    return (chart if len(grid) > 1 else Markup("")) + Markup("<details><summary>{} values</summary>{}</details>").format(len(grid), rows)


def p_value(p: float) -> str:
    """Format a p-value as papers do."""
    return "<\u00a00.0001" if p < 0.0001 else f"{p:.4f}"


def short_source(spec: str) -> str:
    """A SPEC without parent folders: `beir:scifact`."""
    dataset = parse_dataset(spec)
    return f"{dataset.kind}:{dataset.place.rstrip('/').rpartition('/')[2]}{dataset.columns}" if dataset.kind in PATH_KINDS else spec


def format_value(value: object) -> str:
    """Format a number or text of a JSON file for a table cell."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    return f"{value:.4f}" if size < 1 else f"{value:.2f}" if size < 10 else f"{value:,.1f}"
