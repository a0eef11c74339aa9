"""What every chart is drawn from: SVG with the page's colors, so that it follows light and dark mode. Same data, same bytes."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from tasks.core.charts.curves import Curve

WIDTH = 760
NARROW = 358  # of a phone's page, where a drawing of WIDTH would be too small to read
LIGHT = ("#2456c9", "#d0632b", "#1d8a63", "#9145b6", "#b88a00", "#c53a6b", "#14808f", "#6b7280")
DARK = ("#86aaff", "#f09a68", "#4cc495", "#c792ea", "#e2bd4b", "#f2799f", "#58c4d3", "#a3abb8")
COLOURS = len(LIGHT)  # of lines; later lines are dashed


def palette(colours: Sequence[str]) -> str:
    """CSS: the colors of a page's lines, --s0 to --s7."""
    return "".join(f"--s{place}:{colour};" for place, colour in enumerate(colours))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that span low to high."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def line_style(place: int) -> str:
    """CSS classes of line number `place`."""
    return f"s{place % COLOURS}" + (f" dash{place // COLOURS % 3}" if place >= COLOURS else "")


def svg(parts: Sequence[str], height: float, label: str, kind: str, width: float = WIDTH) -> Markup:
    """A drawing; its width and height are units that the page scales. Every text in `parts` must be escaped."""
    head = f'<svg class="{kind}" viewBox="0 0 {short(width)} {short(height)}" role="img" aria-label="{escape(label)}">'
    return Markup(head + "".join(parts) + "</svg>")


def both(wide: Markup, narrow: Markup) -> Markup:
    """A drawing for wide pages and one for phones, of which the page's style shows one."""
    return Markup('<div class="broad">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{short(x1)}" y1="{short(y1)}" x2="{short(x2)}" y2="{short(y2)}"/>'


def text(x: float, y: float, words: str, kind: str) -> str:
    """Text at a point."""
    return f'<text class="{kind}" x="{short(x)}" y="{short(y)}">{escape(words)}</text>'


def title(words: str) -> str:
    """The tooltip of the enclosing element."""
    return f"<title>{escape(words)}</title>"


def short(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def number(value: float) -> str:
    """A figure for an axis."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4f}".rstrip("0").rstrip(".") if value != int(value) else f"{int(value):,}"


def line_chart(heading: str, curves: Sequence[Curve], order: Sequence[str]) -> Markup:
    """Curves over steps; `order` gives every name its color, the same in all charts."""
    width, left, top, height = 370.0, 58.0, 30.0, 150.0
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    first, last = min(xs), max(max(xs), min(xs) + 1)
    x_marks, y_marks = [mark for mark in ticks(first, last, 4) if first <= mark <= last], ticks(min(ys), max(ys), 4)

    def x(value: float) -> float:
        return left + (value - first) / (last - first) * (width - left - 14)

    def y(value: float) -> float:
        return top + height - (value - y_marks[0]) / (y_marks[-1] - y_marks[0]) * height

    parts = [text(left, 16, heading, "label")]
    parts += [line(left, y(mark), width - 14, y(mark), "grid") + text(left - 8, y(mark) + 4, number(mark), "tick end") for mark in y_marks]
    parts += [text(x(mark), top + height + 18, number(mark), "tick middle") for mark in x_marks]
    for curve in curves:
        points = " ".join(f"{short(x(step))},{short(y(value))}" for step, value in curve.points)
        drawn = (
            f'<polyline points="{points}"/>'
            if len(curve.points) > 1
            else f'<circle cx="{points.split(",")[0]}" cy="{points.split(",")[1]}" r="3"/>'
        )
        parts.append(
            f'<g class="{line_style(order.index(curve.name))}">{title(f"{curve.name}: {curve.points[-1][1]:.4g} at the end")}{drawn}</g>'
        )
    return svg(parts, top + height + 28, f"{heading} over steps", "lines", width)
