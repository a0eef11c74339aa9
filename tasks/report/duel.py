"""Compare the best model with its rival on every query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from tasks.core.charts.page import percent
from tasks.core.charts.vega import Spec, area, figure
from tasks.report.systems import Floats, System

STEPS = 600  # maximum queries in the chart; of more, this many at equal distances
EQUAL = 1e-9  # smaller differences are rounding errors


@dataclass(frozen=True)
class Duel:
    """The numbers of queries won, tied, and lost. `median`: of the absolute differences, without ties."""

    won: int
    tied: int
    lost: int
    median: float
    charts: Markup


def compare(model: System, reference: System, split: str) -> Duel:
    """Compare two systems on every query of `split`."""
    first, second = model.values[split], reference.values[split]
    differences = first - second
    won, lost = int((differences > EQUAL).sum()), int((differences < -EQUAL).sum())
    tied = len(differences) - won - lost
    spec = difference_chart(model.queries[split], first, second, (model.name, reference.name))
    chart = figure(spec, f"difference on every query, {model.name} minus {reference.name}")
    median = float(np.median(np.abs(differences[np.abs(differences) > EQUAL]))) if won + lost else 0.0
    return Duel(won, tied, lost, median, share_bar(won, tied, lost) + chart)


def difference_chart(queries: Sequence[str], first: Floats, second: Floats, names: tuple[str, str]) -> Spec:
    """A chart of each query's difference as a step, largest first. The pointer shows ids, not texts, so that nobody tunes on test."""
    order = np.argsort(second - first, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(len(order), STEPS)).round().astype(int)).tolist()
    rows = [
        {
            "x": place,
            "end": end,
            "y": round(float(first[query] - second[query]), 6),
            "query": queries[query],
            "first": f"{first[query]:.4f}",
            "second": f"{second[query]:.4f}",
        }
        for place, end in zip(places, [*places[1:], len(order)], strict=True)
        for query in [int(order[place])]
    ]
    labels = {"query": "query", "first": names[0], "second": names[1]}
    return area(rows, "queries, the largest gain first", f"{names[0]} minus {names[1]}", labels)


def share_bar(won: int, tied: int, lost: int) -> Markup:
    """One bar, divided into the shares of queries won, tied, and lost."""
    total = won + tied + lost
    parts = [
        Markup('<span class="{}" style="flex:{}" title="{}"><i>{}</i></span>').format(kind, count, label, label)
        for kind, count in (("won", won), ("tied", tied), ("lost", lost))
        if count
        for label in [f"{count:,} {kind} ({percent(count / total)})"]
    ]
    return Markup('<div class="shares">{}</div>').format(Markup("").join(parts))
