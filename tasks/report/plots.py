"""The page's charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from tasks.core.charts.svg import NARROW, WIDTH, line, number, short, svg, text, ticks, title
from tasks.report.systems import Floats

CHARACTER = 8.5  # approximate maximum width of a bold letter at 13 px


@dataclass(frozen=True)
class Dot:
    """One line of a dot plot: a mean and its interval."""

    name: str
    mean: float
    low: float
    high: float
    best: bool


def dot_plot(dots: Sequence[Dot], metric: str, confidence: str, *, narrow: bool = False) -> Markup:
    """Means with intervals, one line per system; `narrow` puts its name and mean above the line."""
    width = float(NARROW if narrow else WIDTH)
    left, right, row, top = (14.0, 14.0, 44.0, 6.0) if narrow else (_label_width([dot.name for dot in dots]), 70.0, 30.0, 10.0)
    marks = ticks(min(dot.low for dot in dots), max(dot.high for dot in dots), 3 if narrow else 5)
    bottom = top + row * len(dots)

    def x(value: float) -> float:
        return left + (value - marks[0]) / (marks[-1] - marks[0]) * (width - left - right)

    parts = [line(x(mark), top, x(mark), bottom, "grid") + text(x(mark), bottom + 18, number(mark), "tick middle") for mark in marks]
    for place, dot in enumerate(dots):
        y = top + row * (place + (0.72 if narrow else 0.5))
        words = y - 14 if narrow else y + 4
        kind = "best" if dot.best else "plain"
        tip = f"{dot.name}: {dot.mean:.4f}, {confidence} interval {dot.low:.4f} to {dot.high:.4f}"
        parts.append(
            f'<g class="{kind}">'
            + title(tip)
            + (text(2, words, dot.name, "label") if narrow else text(left - 12, words, dot.name, "label end"))
            + line(x(dot.low), y, x(dot.high), y, "whisker")
            + f'<circle cx="{short(x(dot.mean))}" cy="{short(y)}" r="5.5"/>'
            + text(width - 2 if narrow else width - right + 12, words, f"{dot.mean:.4f}", f"value{' end' if narrow else ''}")
            + "</g>"
        )
    return svg(parts, bottom + 30, f"{metric} of each system with {confidence} intervals", "dots", width)


def share_bar(won: int, tied: int, lost: int, *, whole: float = WIDTH) -> Markup:
    """One bar, `whole` wide, divided into the shares of queries won, tied, and lost."""
    total = won + tied + lost
    parts, start = [], 0.0
    for kind, count in (("won", won), ("tied", tied), ("lost", lost)):
        width = count / total * whole
        if not count:
            continue
        label = f"{count:,} {kind} ({count / total:.0%})"
        parts.append(f'<g class="{kind}">{title(label)}<rect x="{short(start)}" y="0" width="{short(width)}" height="30"/>')
        if width > len(label) * CHARACTER + 16:
            parts.append(text(start + width / 2, 20, label, "inside middle"))
        parts.append("</g>")
        start += width
    return svg(parts, 30, "queries won, tied, and lost", "shares", whole)


def difference_curve(differences: Floats, names: tuple[str, str], *, whole: float = WIDTH) -> Markup:
    """The difference on every query, largest first, as an area above and below zero; `whole` wide."""
    values = np.sort(differences)[::-1]
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), 600)).round().astype(int))
    limit = max(float(np.abs(values).max()), 1e-9)
    left, top, height = 52.0, 12.0, 200.0
    middle = top + height / 2
    width = whole - left - 12

    def x(place: float) -> float:
        return left + place / len(values) * width

    def y(value: float) -> float:
        return middle - value / limit * height / 2

    parts = [
        line(left, y(mark), whole - 12, y(mark), "axis" if mark == 0 else "grid")
        + text(left - 8, y(mark) + 4, f"{mark:+.2g}" if mark else "0", "tick end")
        for mark in (limit, limit / 2, 0.0, -limit / 2, -limit)
    ]
    for kind, clipped in (("won", np.maximum(values, 0)), ("lost", np.minimum(values, 0))):
        steps = [f"M{short(x(0))} {short(middle)}"]
        for place, following in pairwise([*places.tolist(), len(values)]):
            level = short(y(float(clipped[place])))
            steps.append(f"L{short(x(place))} {level}L{short(x(following))} {level}")
        parts.append(f'<path class="{kind}" d="{"".join(steps)}L{short(x(len(values)))} {short(middle)}Z"/>')
    parts.append(text(left + 6, top + height + 18, f"{names[0]} better", "tick"))
    parts.append(text(whole - 12, top + height + 18, f"{names[1]} better", "tick end"))
    return svg(parts, top + height + 26, f"difference on every query, {names[0]} minus {names[1]}", "differences", whole)


def _label_width(names: Sequence[str]) -> float:
    return min(240.0, max(len(name) for name in names) * CHARACTER + 26)
