"""Pages of what the flow itself knows: tables, curves and bars in one self-contained file."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tasks.core.charts.svg import COLOURS, DARK, LIGHT, line, line_style, number, palette, short, svg, text, ticks, title

STYLE = (
    ":root{--ground:#fcfcfb;--ink:#1c1f26;--soft:#5d6470;--faint:#e4e6ea;"
    + palette(LIGHT)
    + "}@media(prefers-color-scheme:dark){:root{--ground:#14161a;--ink:#e6e8ec;--soft:#9aa2af;--faint:#2d323b;"
    + palette(DARK)
    + "}}body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,sans-serif}"
    "main{max-width:860px;margin:0 auto;padding:40px 20px 80px}h1{font-size:26px;line-height:1.25;text-wrap:balance}"
    ".note{color:var(--soft);font-size:14px}.wide{overflow-x:auto;margin:14px 0}"
    "table{border-collapse:collapse;font-size:15px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:7px 12px;border-bottom:1px solid var(--faint);white-space:nowrap}th{font-size:13px;color:var(--soft)}"
    ".name{text-align:left}td.top{font-weight:650}"
    "svg{display:block;width:100%;height:auto;margin:10px 0;font:13px system-ui,sans-serif}.wide>svg{min-width:560px}"
    "svg text{fill:var(--ink)}"
    "svg .tick{fill:var(--soft);font-size:12px}svg .label{font-weight:650}svg .middle{text-anchor:middle}svg .end{text-anchor:end}"
    "svg .grid{stroke:var(--faint)}svg polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    "@media(max-width:600px){"  # as tasks/report/page.html has it
    '.scrolls::before{content:"scroll sideways \\2192";position:sticky;left:0;color:var(--soft);font-size:13px}'
    "table.stack,.stack tbody{display:block}.stack thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
    ".stack tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(92px,1fr));gap:4px 10px;padding:10px 0;"
    "border-bottom:1px solid var(--faint)}.stack td{border:0;padding:0;text-align:left;white-space:normal;overflow-wrap:anywhere}"
    ".stack td:first-child{grid-column:1/-1;font-weight:650}"
    ".stack td[data-label]::before{content:attr(data-label);display:block;color:var(--soft);font-size:12px;font-weight:400}}"
)
# The report's page has the rest in its own style; this adds what bars and points need.
MARKS = (
    "".join(
        f".s{p}{{stroke:var(--s{p});color:var(--s{p})}}.s{p} circle,.bar.s{p} rect{{fill:var(--s{p})}}.s{p} text{{stroke:none}}"
        for p in range(COLOURS)
    )
    + ".dash0{stroke-dasharray:6 4}.dash1{stroke-dasharray:2 3}.dash2{stroke-dasharray:8 3 2 3}.dotted{stroke-dasharray:2 4}"
    ".verdicts{padding-left:20px}.bar rect{stroke:none}svg .waiting{stroke:var(--soft);stroke-dasharray:2 3}"
)


@dataclass(frozen=True)
class Point:
    """A point of a line: where, and the interval around it, if any; `note` shows under the pointer."""

    x: float
    y: float
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    dotted: bool = False  # a reference level


@dataclass(frozen=True)
class Bar:
    """A time span in a row, in seconds from the start. `waiting` is when it could have started."""

    name: str
    start: float
    end: float
    kind: int
    note: str
    waiting: float | None = None


def page(heading: str, body: str) -> str:
    """A whole page. `body` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{html.escape(heading)}</title><style>{STYLE}{MARKS}</style></head>'
        f"<body><main><h1>{html.escape(heading)}</h1>{body}</main></body></html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is flush left."""

    names = [html.escape(name) for name in header]
    kinds = ["name", *[""] * (len(names) - 1)]
    head = "".join(f'<th class="{kind}">{name}</th>' for kind, name in zip(kinds, names, strict=True))
    labels = ["", *(f' data-label="{name}"' for name in names[1:])]  # shown where the head is hidden: on a phone

    def cells(values: Sequence[str]) -> str:
        return "".join(f'<td class="{k}"{label}>{html.escape(v)}</td>' for k, label, v in zip(kinds, labels, values, strict=True))

    body = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def scrolling(drawing: str) -> str:
    """A drawing that is too wide for a phone, with a hint there to scroll."""
    return f'<div class="wide scrolls">{drawing}</div>'


def chart(heading: str, lines: Sequence[Line], below: str, names: Sequence[str] = ()) -> str:
    """Lines over numbers, or over `names`, one at each x = 0, 1, ...; every line is labeled at its end."""
    width, top, height = 760.0, 34.0, 260.0
    left, right = 62.0, min(230.0, max(len(one.name) for one in lines) * 7.6 + 26)
    points = [point for one in lines for point in one.points]
    xs = [*range(len(names))] if names else [point.x for point in points]
    y_marks = ticks(min(p.y - p.spread for p in points), max(p.y + p.spread for p in points), 5)
    x_marks = [float(place) for place in xs] if names else ticks(min(xs), max(xs), 6)
    first, last = x_marks[0], max(x_marks[-1], x_marks[0] + 1)

    def x(value: float) -> float:
        return left + (value - first) / (last - first) * (width - left - right)

    def y(value: float) -> float:
        return top + height - (value - y_marks[0]) / (y_marks[-1] - y_marks[0]) * height

    parts = [text(left, 16, heading, "label")]
    parts += [
        line(left, y(mark), width - right, y(mark), "grid") + text(left - 8, y(mark) + 4, number(mark), "tick end") for mark in y_marks
    ]
    labels = names or [number(mark) for mark in x_marks]
    parts += [text(x(mark), top + height + 18, label, "tick middle") for mark, label in zip(x_marks, labels, strict=True)]
    parts.append(text(left + (width - left - right) / 2, top + height + 38, below, "tick middle"))
    ends = spaced([y(one.points[-1].y) for one in lines], 15.0)
    for place, (one, end) in enumerate(zip(lines, ends, strict=True)):
        drawn = " ".join(f"{short(x(point.x))},{short(y(point.y))}" for point in one.points)
        parts.append(f'<g class="{line_style(place)}{" dotted" if one.dotted else ""}">{title(one.name)}<polyline points="{drawn}"/>')
        for point in () if one.dotted else one.points:
            if point.spread:
                parts.append(line(x(point.x), y(point.y - point.spread), x(point.x), y(point.y + point.spread), ""))
            dot = f'<circle cx="{short(x(point.x))}" cy="{short(y(point.y))}" r="3.5"/>'
            parts.append(f"<g>{title(point.note or f'{one.name}: {point.y:.4f}')}{dot}</g>")
        near = x(one.points[-1].x) + 9
        parts.append(text(near, end + 4, one.name, "tick") + "</g>")
    return str(svg(parts, top + height + 46, heading, "lines", width))


def spaced(places: Sequence[float], least: float) -> list[float]:
    """Label heights: as close to `places` as possible with any two `least` apart, in the same order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for upper, lower in pairwise(order):
        moved[lower] = max(moved[lower], moved[upper] + least)
    return moved


def bars(heading: str, found: Sequence[Bar], ticked: Sequence[tuple[float, str]]) -> str:
    """A row for each name, in the order of the bars; `ticked` are the time marks."""
    names = list(dict.fromkeys(bar.name for bar in found))
    left, right, row, top, width = min(260.0, max(map(len, names)) * 7.4 + 20), 30.0, 22.0, 28.0, 900.0
    last = max([*(bar.end for bar in found), 1e-9])

    def x(value: float) -> float:
        return left + value / last * (width - left - right)

    bottom = top + row * len(names)
    parts = [text(left, 14, heading, "label")]
    parts += [
        line(x(at), top, x(at), bottom, "grid") + text(x(at), bottom + 18, label, "tick middle") for at, label in ticked if at <= last
    ]
    parts += [text(left - 10, top + row * (place + 0.5) + 4, name, "tick end") for place, name in enumerate(names)]
    for bar in found:
        y = top + row * names.index(bar.name)
        if bar.waiting is not None and bar.start > bar.waiting:
            parts.append(line(x(bar.waiting), y + row / 2, x(bar.start), y + row / 2, "waiting"))
        wide = max(1.5, x(bar.end) - x(bar.start))
        box = f'<rect x="{short(x(bar.start))}" y="{short(y + 3)}" width="{short(wide)}" height="{short(row - 6)}" rx="3"/>'
        parts.append(f'<g class="bar s{bar.kind % COLOURS}">{title(bar.note)}{box}</g>')
    return str(svg(parts, bottom + 26, heading, "bars", width))
