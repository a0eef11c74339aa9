"""One self-contained HTML file: the style, scripts and tables of every page. Nothing is fetched; a policy makes browsers refuse to.

The charts of tasks.core.charts.vega are drawn by Vega (BSD-3), whose JavaScript comes with vl-convert.
"""

from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
ASKS = f"{POLICY}; connect-src 'self'"  # for a page that sends requests to its own server


class Cell(NamedTuple):
    """A cell of a table that is sorted by `value`, because its text does not sort (`1m15s`)."""

    text: str
    value: float


def percent(share: float) -> str:
    """`95%`, rounded."""
    return f"{100 * share:.0f}%"


def confidence(alpha: float) -> str:
    """The level of a 1 - alpha interval, `97.5%`, not rounded."""
    return f"{100 * (1 - alpha):.10g}%"


def head(title: str, policy: str = POLICY) -> Markup:
    """The content of <head>."""
    style = Markup((Path(__file__).parent / "page.css").read_text(encoding="utf-8"))
    return Markup(
        '<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        "<title>{}</title>\n<style>\n{}</style>"
    ).format(Markup(policy), title, style)


@cache
def scripts() -> Markup:
    """The scripts at the end of <body>: Vega and page.js, 0.9 MB."""
    import vl_convert

    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    assert "</script" not in bundle.lower() and "<!--" not in bundle, "would end the script"
    return Markup(f"<script>{bundle}</script>\n<script>\n{script}</script>")


def page(heading: str, body: Markup, policy: str = POLICY) -> str:
    """A whole page."""
    return Markup(
        '<!doctype html>\n<html lang="en">\n<head>\n{}\n</head>\n<body><main><h1>{}</h1>{}</main>\n{}\n</body>\n</html>\n'
    ).format(head(heading, policy), heading, body, scripts())


def table(header: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, words: Container[str] = ()) -> Markup:
    """A sortable table. The first column names the rows; it and the columns in `words` are flush left. On a phone a row is a card."""
    kinds = [Markup(' class="name"') if place == 0 or name in words else Markup("") for place, name in enumerate(header)]
    top = Markup("").join(Markup('<th scope="col"{}>{}</th>').format(kind, name) for kind, name in zip(kinds, header, strict=True))
    labels = [Markup(""), *(Markup(' data-label="{}"').format(name) for name in header[1:])]
    body = Markup("").join(Markup("<tr>{}</tr>").format(_cells(row, kinds, labels)) for row in rows)
    return Markup('<div class="wide"><table class="stack"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>').format(top, body)


def _cells(row: Sequence[str | Cell], kinds: Sequence[Markup], labels: Sequence[Markup]) -> Markup:
    cells = []
    for place, (kind, label, cell) in enumerate(zip(kinds, labels, row, strict=True)):
        tag = Markup("td" if place else "th")
        value = Markup(' data-value="{}"').format(f"{cell.value:.12g}") if isinstance(cell, Cell) else ""
        scope, text = Markup("" if place else ' scope="row"'), cell.text if isinstance(cell, Cell) else cell
        cells.append(Markup("<{}{}{}{}{}>{}</{}>").format(tag, scope, kind, label, value, text, tag))
    return Markup("").join(cells)
