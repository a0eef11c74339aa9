"""Charts as Vega-Lite specifications, which the page draws in its reader's browser, in its own colors. Same data, same bytes.

Each function returns a specification; `figure` puts it into a page. Colors are names of the page's style (page.css), so that charts follow
light and dark. Every mark shows its figures under the pointer.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tasks.core.charts.curves import Curve

Spec = dict[str, Any]
COLOURS = 8  # --s0 to --s7 of page.css; the lines after these are dashed
DASHES = ([1, 0], [6, 4], [2, 3], [8, 3, 2, 3])
APART = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)  # seconds between two ticks of an axis of time
TICKS_UP = 8  # on an axis of values, at most: Vega draws 5 or a few more
TICKS = 8  # on an axis of time, at most, and one at 0
KINDS = {"plain": "var(--soft)", "best": "var(--accent)", "won": "var(--won)", "lost": "var(--lost)"}


@dataclass(frozen=True)
class Interval:
    """A row of `intervals`: a value and its interval, if it has one; `kind` is one of KINDS; `notes` are shown under the pointer too."""

    name: str
    value: float
    low: float | None
    high: float | None
    kind: str = "plain"
    notes: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Point:
    """A point of a line: where, and half the width of its interval, if it has one; `note` is shown under the pointer."""

    x: float | str
    y: float
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart. `level`: a reference, dotted and without points."""

    name: str
    points: Sequence[Point]
    level: bool = False


@dataclass(frozen=True)
class Span:
    """A bar over time, in seconds from the start. `ready`: when it could have started."""

    name: str
    start: float
    end: float
    kind: str
    note: str
    ready: float | None = None


def figure(spec: Spec, label: str) -> Markup:
    """A chart in a page; `label` is for screen readers. Without scripts the page shows only `label`."""
    # "<" would end the script; U+2028 and U+2029 need no care in JSON that JSON.parse reads
    spec_json = json.dumps(spec, ensure_ascii=False, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")
    return Markup('<figure class="plot"><script type="application/json">{}</script><figcaption>{}</figcaption></figure>').format(
        Markup(spec_json), label
    )


def legend(names: Sequence[str]) -> Markup:
    """The color of each name, as `lines` draws it."""
    items = Markup("").join(Markup('<li><span class="{}"></span>{}</li>').format(style(place), name) for place, name in enumerate(names))
    return Markup('<ul class="legend">{}</ul>').format(items)


def style(place: int) -> str:
    """CSS classes of name number `place` in a legend."""
    dash = place // COLOURS % len(DASHES)
    return f"s{place % COLOURS}" + (f" dash{dash}" if dash else "")


def colours(names: Sequence[str]) -> Spec:
    """A scale that gives each name its color."""
    return {"domain": list(names), "range": [f"var(--s{place % COLOURS})" for place in range(len(names))]}


def intervals(rows: Sequence[Interval], axis: str, *, unit: str = "interval", zero: bool = False) -> Spec:
    """A row for each name: a dot at its value, a line over its interval. `zero`: values are differences, and 0 is marked."""
    keys = list(dict.fromkeys(key for row in rows for key in row.notes or {}))
    form = "+.4f" if zero else ".4f"
    values = [
        {"name": row.name, "value": row.value, "low": row.low, "high": row.high, "kind": row.kind}
        | {f"note {keys.index(key)}": value for key, value in (row.notes or {}).items()}  # a key may be a system's name: "low", say
        | {"text": format(row.value, form), "unit": "-" if row.low is None else f"{row.low:{form}} to {row.high:{form}}"}
        for row in rows
    ]
    tooltips = [
        tooltip("name", ""),
        tooltip("text", axis),
        tooltip("unit", unit),
        *(tooltip(f"note {number}", key) for number, key in enumerate(keys)),
    ]
    x = {"type": "quantitative", "scale": {"zero": zero}, "title": axis}
    colour = {"field": "kind", "type": "nominal", "legend": None, "scale": {"domain": list(KINDS), "range": list(KINDS.values())}}
    marks: list[Spec] = [{"mark": {"type": "rule", "strokeDash": [2, 3]}, "data": {"values": [{}]}, "encoding": {"x": {"datum": 0}}}]
    marks = marks if zero else []
    order = [row.name for row in rows]  # needed, as the first layer drops rows without an interval: its order would be the axis's
    named = {"y": {"field": "name", "type": "nominal", "sort": order, "title": None}, "color": colour, "tooltip": tooltips}
    return {
        "width": "container",
        "height": 28 * len(rows),
        "data": {"values": values},
        "layer": [
            *marks,
            {
                "mark": {"type": "rule", "strokeWidth": 2, "strokeCap": "round"},
                "encoding": {**named, "x": x | {"field": "low"}, "x2": {"field": "high"}},
            },
            {"mark": {"type": "point", "filled": True, "size": 110, "opacity": 1}, "encoding": {**named, "x": x | {"field": "value"}}},
        ],
    }


def lines(series: Sequence[Line], x: str, y: str, *, order: Sequence[str] = (), height: int = 200, dots: bool = False) -> Spec:
    """Lines over numbers, or over names where x is text, in the order of the points. The point nearest to the pointer shows its figures.

    `order` gives each name its color, the same in all charts of a page; `dots` marks every point.
    """
    names = list(order) or [line.name for line in series]
    points = [(line, point) for line in series for point in line.points]
    values = [
        {"name": line.name, "x": p.x, "y": p.y, "note": p.note or f"{p.y:.4g}"}
        | ({"low": p.y - p.spread, "high": p.y + p.spread} if p.spread else {})
        | ({"level": 1} if line.level else {})
        for line, p in points
    ]
    is_named = any(isinstance(point.x, str) for _, point in points)
    x_channel: Spec = {"field": "x", "title": x, "type": "ordinal" if is_named else "quantitative", "sort": None}
    x_channel |= {"axis": {"labelAngle": 0}} if is_named else {"scale": {"zero": False, "nice": False}}
    x_channel |= {} if is_named else integer_ticks([float(point.x) for _, point in points])
    y_channel: Spec = {
        "field": "y",
        "title": y,
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"format": f".{tick_digits(points)}~g"},
    }
    dashes = {"domain": names, "range": [DASHES[place // COLOURS % len(DASHES)] for place in range(len(names))]}
    base = {"x": x_channel, "color": {"field": "name", "type": "nominal", "legend": None, "scale": colours(names)}}
    tooltips = [
        tooltip("name", ""),
        tooltip("x", x) if is_named else tooltip("x", x) | {"type": "quantitative", "format": ",.6~g"},
        tooltip("note", y),
    ]
    opacity = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 1 if dots else 0}
    stroke_dash = {"field": "name", "type": "nominal", "legend": None, "scale": dashes}
    layers: list[Spec] = [
        {
            "transform": [{"filter": "!datum.level"}],
            "mark": {"type": "line"},
            "encoding": base | {"y": y_channel, "strokeDash": stroke_dash},
        },
        {
            "transform": [{"filter": "!datum.level"}],
            "params": [{"name": "near", "select": {"type": "point", "on": "pointermove", "nearest": True, "clear": "pointerout"}}],
            "mark": {"type": "point", "filled": True, "size": 45},
            "encoding": base | {"y": y_channel, "tooltip": tooltips, "opacity": opacity},
        },
    ]
    if any(point.spread for _, point in points):
        layers.append({"transform": [{"filter": "datum.low != null"}], "mark": "rule"})
        layers[-1]["encoding"] = base | {"y": y_channel | {"field": "low"}, "y2": {"field": "high"}}
    if any(line.level for line in series):
        layers.append({"transform": [{"filter": "datum.level"}], "mark": {"type": "line", "strokeDash": [2, 4]}})
        layers[-1]["encoding"] = base | {"y": y_channel, "tooltip": tooltips}
    return {"width": "container", "height": height, "data": {"values": values}, "layer": layers}


def integer_ticks(values: Sequence[float]) -> Spec:
    """Settings of an axis with few whole numbers: ticks only at these. Empty for a longer axis, where Vega makes no others."""
    first, last = min(values, default=0), max(values, default=0)
    if last - first > 5 or not all(float(value).is_integer() for value in values):
        return {}
    return {"axis": {"values": list(range(int(first), int(last) + 1))}}


def tick_digits(points: Iterable[tuple[Line, Point]]) -> int:
    """How many significant digits, at least 4, the ticks of an axis of the points' y need, so that no two look alike."""
    ends = [end for _, point in points for end in (point.y - point.spread, point.y + point.spread)]
    size, span = max(map(abs, ends), default=0.0), max(ends, default=0.0) - min(ends, default=0.0)
    if not span > 0:
        return 4
    return min(15, max(4, 1 + math.floor(math.log10(size)) - math.floor(math.log10(span / TICKS_UP))))


def curve_lines(curves: Sequence[Curve], metric: str, order: Sequence[str]) -> Spec:
    """Curves of a training over its steps."""
    series = [Line(curve.name, [Point(step, value) for step, value in curve.points]) for curve in curves]
    return lines(series, "step", metric, order=order, height=150, dots=all(len(curve.points) == 1 for curve in curves))


def spans(rows: Sequence[Span]) -> Spec:
    """A row for each name, in the order of the spans, with a dotted line from `ready` to the start."""
    kinds = list(dict.fromkeys(span.kind for span in rows))
    values = [{"name": s.name, "start": s.start, "end": s.end, "kind": s.kind, "note": s.note, "ready": s.ready} for s in rows]
    order = list(dict.fromkeys(span.name for span in rows))  # needed, as the first layer has only the spans that waited
    y = {"field": "name", "type": "nominal", "sort": order, "title": None}
    seconds = "datum.value >= 3600 ? format(datum.value / 3600, '.3~g') + ' h' : datum.value >= 120 ? format(datum.value / 60, '.3~g')"
    last = max((span.end for span in rows), default=0)
    tick_step = next((step for step in APART if last <= TICKS * step), 86400 * math.ceil(last / 86400 / TICKS))
    axis = {"labelExpr": f"{seconds} + ' min' : datum.label + ' s'", "values": [tick_step * n for n in range(int(last / tick_step) + 1)]}
    x = {"type": "quantitative", "title": "time from the start", "axis": axis}
    tooltips = [tooltip("name", ""), tooltip("note", "details")]
    colour = {"field": "kind", "type": "nominal", "legend": None, "scale": colours(kinds)}
    return {
        "width": "container",
        "height": 20 * len({span.name for span in rows}),
        "data": {"values": values},
        "layer": [
            {
                "transform": [{"filter": "datum.ready != null && datum.ready < datum.start"}],
                "mark": {"type": "rule", "strokeDash": [2, 3]},
                "encoding": {"y": y, "x": x | {"field": "ready"}, "x2": {"field": "start"}},
            },
            {
                "mark": {"type": "bar", "cornerRadius": 3, "minBandSize": 2, "height": {"band": 0.7}},
                "encoding": {"y": y, "x": x | {"field": "start"}, "x2": {"field": "end"}, "color": colour, "tooltip": tooltips},
            },
        ],
    }


def bars(rows: Sequence[tuple[str, str, float]], x: str, order: Sequence[str]) -> Spec:
    """Rows (group, name, value): for each group a bar of each name, in the names' colors; missing bars leave no gap."""
    values = [{"group": group, "name": name, "value": value} for group, name, value in rows]
    y = {"field": "group", "type": "nominal", "sort": None, "title": None}
    offset = {"field": "name", "type": "nominal", "sort": None}
    return {
        "width": "container",
        "height": len(rows) * (14 if len(order) > 1 else 24) + 8 * len({group for group, _, _ in rows}),
        "data": {"values": values},
        "mark": {"type": "bar", "cornerRadius": 2},
        "encoding": {
            "y": y,
            "x": {"field": "value", "type": "quantitative", "title": x},
            "color": {"field": "name", "type": "nominal", "legend": None, "scale": colours(order)},
            "tooltip": [tooltip("group", ""), tooltip("name", "of"), {"field": "value", "title": x, "format": ".4~g"}],
        }
        | ({"yOffset": offset} if len(order) > 1 else {}),
    }


def area(values: Sequence[Mapping[str, Any]], x: str, y: str, tooltips: Mapping[str, str]) -> Spec:
    """A signed quantity `y`, already in order of the rank `x`, as steps above and below 0.

    `tooltips`: the fields to show under the pointer, and their titles.
    """
    x_channel = {"field": "x", "type": "quantitative", "title": x, "scale": {"nice": False}} | integer_ticks(
        [end for row in values for end in (row["x"], row["end"])]
    )
    colour = {"condition": {"test": "datum.y > 0", "value": "var(--won)"}, "value": "var(--lost)"}
    return {
        "width": "container",
        "height": 200,
        "data": {"values": list(values)},
        "mark": {"type": "rect", "strokeWidth": 0.5},
        "encoding": {
            "x": x_channel,
            "x2": {"field": "end"},
            "y": {"field": "y", "type": "quantitative", "title": y},
            "y2": {"datum": 0},
            "fill": colour,
            "stroke": colour,  # closes the gaps between neighbors
            "tooltip": [tooltip(field, title) for field, title in tooltips.items()],
        },
    }


def scatter(points: Sequence[Mapping[str, Any]], order: Sequence[str]) -> Spec:
    """Points (x, y, kind, id) of a plane without units, in the colors of their kinds."""
    plain = {"type": "quantitative", "axis": None, "scale": {"zero": False}}
    return {
        "width": "container",
        "height": 260,
        "data": {"values": [{key: point[key] for key in ("x", "y", "kind", "id")} for point in points]},
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            "x": {"field": "x", **plain},
            "y": {"field": "y", **plain},
            "color": {"field": "kind", "type": "nominal", "legend": None, "scale": colours(order)},
            "size": {"condition": {"test": "datum.kind == 'query'", "value": 220}, "value": 60},
            "tooltip": [tooltip("kind", ""), tooltip("id", "id")],
        },
    }


def tooltip(field: str, title: str) -> Spec:
    """A field to show under the pointer, as text; the page takes the one without a title as the heading."""
    return {"field": escape_field(field), "type": "nominal", "title": title or "title"}


def escape_field(field: str) -> str:
    """A field's name, escaped: Vega would read dots and brackets in it as a path."""
    return "".join(f"\\{letter}" if letter in ".[]'\"\\" else letter for letter in field)


@dataclass(frozen=True)
class Node:
    """A row of `arcs`: what it reads from, whether it is `marked`, and the notes that are shown under the pointer."""

    name: str
    reads: Sequence[str]
    marked: bool
    notes: Mapping[str, str]


def arcs(nodes: Sequence[Node]) -> Spec:
    """A row for each node, in an order in which each follows what it reads from, and an arc from each to what it reads from.

    The arcs of the node nearest to the pointer stand out.
    """
    places = {node.name: place for place, node in enumerate(nodes)}
    rows = [{"name": node.name, "x": 0, "place": places[node.name], "marked": int(node.marked), **node.notes} for node in nodes]
    edges = [(source, node.name) for node in nodes for source in node.reads if source in places]
    bends = [
        {"edge": number, "from": source, "to": target, "step": step, "x": out, "place": at}
        for number, (source, target) in enumerate(edges)
        for start, end in [(places[source], places[target])]
        for step, out, at in ((0, 0, start), (1, end - start, (start + end) / 2), (2, 0, end))
    ]
    names = json.dumps([node.name for node in nodes])
    y = {
        "field": "place",
        "type": "quantitative",
        "title": None,
        "scale": {"reverse": True, "nice": False, "domain": [-0.5, len(nodes) - 0.5]},
        "axis": {
            "values": list(range(len(nodes))),
            "labelExpr": f"{names}[datum.value]",
            "grid": False,
            "labelOverlap": False,
            "tickCount": len(nodes),
        },
    }
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"nice": False}}
    near = "near.name && (near.name[0] == datum.from || near.name[0] == datum.to)"
    tooltips = [tooltip("name", ""), *(tooltip(key, key) for key in (nodes[0].notes if nodes else ()))]
    return {
        "width": "container",
        "height": 20 * len(nodes),
        "layer": [
            {
                "data": {"values": bends},
                "mark": {"type": "line", "interpolate": "basis", "color": "var(--soft)", "strokeWidth": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "order": {"field": "step"},
                    "detail": {"field": "edge"},
                    "opacity": {"condition": {"test": near, "value": 1}, "value": 0.15},
                },
            },
            {
                "data": {"values": rows},
                "params": [
                    {
                        "name": "near",
                        "select": {"type": "point", "on": "pointermove", "nearest": True, "clear": "pointerout", "fields": ["name"]},
                    }
                ],
                "mark": {"type": "point", "size": 70, "opacity": 1, "strokeWidth": 2},
                "encoding": {
                    "x": x,
                    "y": y,
                    "stroke": {"condition": {"test": "datum.marked", "value": "var(--accent)"}, "value": "var(--soft)"},
                    "fill": {"condition": {"test": "datum.marked", "value": "var(--accent)"}, "value": "var(--ground)"},  # a ring
                    "tooltip": tooltips,
                },
            },
        ],
    }
