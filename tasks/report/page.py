"""The page: all of the report in one self-contained file, laid out by page.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from tasks.core.charts.curves import Curve
from tasks.core.charts.svg import DARK, LIGHT, NARROW, WIDTH, both, line_chart, line_style, palette
from tasks.core.metrics.paired_tests import mean_interval
from tasks.core.metrics.power import WANTED
from tasks.core.sources.datasets import FOLDER_KINDS
from tasks.report import plots
from tasks.report.examples import Examples
from tasks.report.params import Report
from tasks.report.significance import PAPERS, Pair, headline
from tasks.report.systems import Floats, System
from tasks.report.table import Table


@dataclass(frozen=True)
class Contents:
    """Everything the page shows. `duel` is the best model and the system it is compared with; None if there is only one."""

    dataset: str
    encoder: str
    in_common: str  # settings of all trained rounds
    cut_short: str
    unjudged: str  # what no human judged
    titles: bool
    statistics: Mapping[str, Any]
    params: Report
    systems: Sequence[System]
    best: System
    chosen_on: str
    table: Table
    letters: Mapping[str, str]
    pairs: Mapping[str, Sequence[Pair]]
    duel: tuple[System, System] | None
    curves: Mapping[str, Sequence[Curve]]
    indexes: Mapping[str, Mapping[str, Any]]
    fusions: Mapping[str, Mapping[str, Any]]  # what each fusion chose on dev, and from which grid: fusion.json next to its runs
    examples: Examples | None


def render(contents: Contents) -> str:
    """The page as HTML; every text from outside is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"p": p_value, "figure": figure, "signed": lambda value: f"{value:+.4f}", "source": source}
    split, names = contents.table.split, [curve.name for curves in contents.curves.values() for curve in curves]
    order = list(dict.fromkeys(names))
    return environment.get_template("page.html").render(
        c=contents,
        confidence=f"{1 - contents.params.alpha:.0%}",
        queries={name: len(next(s.queries[name] for s in contents.systems if name in s.queries)) for name in contents.pairs},
        dots=dots(contents, split),
        duel=_duel(contents, split),
        light=palette(LIGHT),
        dark=palette(DARK),
        charts=[line_chart(metric, curves, order) for metric, curves in contents.curves.items()],
        legend=[(name, line_style(place)) for place, name in enumerate(order)],
        index_columns=list(dict.fromkeys(key for figures in contents.indexes.values() for key in figures)),
        headline=headline(contents.pairs[split], contents.duel),
        tests=contents.params.tests,
        levels=PAPERS,
        wanted=f"{WANTED:.0%}",
    )


def dots(contents: Contents, split: str) -> Any:
    """A chart of the means of the report's metric, with intervals."""
    metric, alpha = contents.params.metric, contents.params.alpha
    shown = [system for system in contents.systems if split in system.values]
    drawn = [
        plots.Dot(s.name, s.metrics[split][metric], *mean_interval(s.values[split], alpha), s.name == contents.best.name) for s in shown
    ]
    confidence = f"{1 - alpha:.0%}"
    return both(plots.dot_plot(drawn, metric, confidence), plots.dot_plot(drawn, metric, confidence, narrow=True))


def _duel(contents: Contents, split: str) -> dict[str, Any] | None:
    if not contents.duel or any(split not in system.values for system in contents.duel):
        return None
    model, reference = contents.duel
    differences = model.values[split] - reference.values[split]
    won, lost = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return {
        "won": won,
        "lost": lost,
        "tied": len(differences) - won - lost,
        "median": float(np.median(np.abs(differences[np.abs(differences) > 1e-9]))) if won + lost else 0.0,
        "charts": both(*(_duel_charts(differences, won, lost, (model.name, reference.name), whole=width) for width in (WIDTH, NARROW))),
    }


def _duel_charts(differences: Floats, won: int, lost: int, names: tuple[str, str], *, whole: float) -> Markup:
    bar = plots.share_bar(won, len(differences) - won - lost, lost, whole=whole)
    return bar + plots.difference_curve(differences, names, whole=whole)


def p_value(p: float) -> str:
    """A p-value, formatted as in papers."""
    return "<\u00a00.0001" if p < 0.0001 else f"{p:.4f}"


def source(spec: str) -> str:
    """A SPEC without parent folders: `beir:scifact`."""
    kind, colon, place = spec.partition(":")
    return f"{kind}{colon}{place.rstrip('/').rpartition('/')[2]}" if kind in FOLDER_KINDS else spec


def figure(value: object) -> str:
    """A number or text of a JSON file, for a table cell."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:,.2f}"
