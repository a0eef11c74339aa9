"""Pages in a real browser: charts are drawn and answer to the pointer, tables are sorted, and nothing goes wrong in the console."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from tasks.core.charts.page import Cell, page, table
from tasks.core.charts.vega import (
    Interval,
    Line,
    Node,
    Point,
    Span,
    arcs,
    area,
    bars,
    figure,
    intervals,
    legend,
    lines,
    scatter,
    spans,
)

NAMES = [f"round {n}" for n in range(10)]
GROUPS = ["rarity (mean idf): 10.72 to 12.71", "question word: yes or no", "question word: when", "question word: where"]
FIGURES = {
    "means": intervals(
        [Interval("bm25", 0.5, 0.4, 0.6), Interval("star.<b>", 0.75, 0.7, 0.8, "best", {"n.q [x]": "7"}), Interval("few", 0.6, None, None)],
        "nDCG@10",
    ),
    "differences": intervals([Interval("all", -0.1, -0.2, 0.0, "lost")], "AP", zero=True),
    "lines": lines([Line(name, [Point(0, place), Point(10, 2.0 * place, spread=0.5)]) for place, name in enumerate(NAMES)], "step", "loss"),
    "settings": lines(
        [Line("a", [Point("500", 1.0), Point("1000", 2.0)]), Line("level", [Point("500", 1.5), Point("1000", 1.5)], level=True)], "n", "AP"
    ),
    "times": spans([Span("train", 0, 90, "train", "ran", 0), Span("encode", 90, 200, "encode", "ran", 60)]),
    "bars": bars([("random", "top", 0.5), ("bm25", "top", 0.25), ("bm25", "all", 1.0)], "norm", ["top", "all"]),
    "one bar": bars([("random", "top", 0.5)], "norm", ["top"]),
    "area": area(
        [{"x": 0, "end": 1, "y": 0.5, "query": "q.1"}, {"x": 1, "end": 2, "y": -0.5, "query": "q2"}],
        "queries",
        "difference",
        {"query": "query"},
    ),
    "map": scatter([{"kind": "query", "id": "q", "x": 0.0, "y": 0.0}, {"kind": "bm25", "id": "d", "x": 1.0, "y": 2.0}], ["query", "bm25"]),
    "graph": arcs([Node(f"stage {n}", [f"stage {above}" for above in range(n)], n == 0, {"time": f"{n} s"}) for n in range(12)]),
    "groups": intervals([Interval(name, 0.1, 0.0, 0.2) for name in GROUPS], "AP"),
}
TABLE = table(
    ["name", "value", "time", "p"],
    [
        ["b", "0.5", Cell("1m05s", 65), "< 0.0001"],
        ["a", "12,000", Cell("9.0 s", 9), "0.0123"],
        ["c", "", "", "-"],
        ["d", "-3", Cell("2h", 7200), "0.5"],
    ],
)


@pytest.fixture(scope="module")
def chart_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Markup("<details id='fold'><summary>more</summary><span id='inside'>{}</span></details>").format(
        figure(FIGURES["means"], "folded")
    )
    body = Markup("").join([legend(NAMES), *(figure(spec, name) for name, spec in FIGURES.items()), TABLE, folder])
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page("All <charts>", body), encoding="utf-8")
    return path


@pytest.fixture(params=[(1400, "light"), (390, "dark")], ids=["wide", "phone"])
def tab(request: pytest.FixtureRequest, browser: Any, chart_page: Path) -> Iterator[Any]:
    """The page, wide and light or narrow and dark; its console must be empty at the end."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("request", lambda sent: None if sent.url.startswith("file:") else messages.append(sent.url))
    tab.goto(chart_page.as_uri())
    tab.wait_for_function("document.body.dataset.ready !== undefined")
    yield tab
    context.close()
    assert messages == []


def test_every_chart_is_drawn_inside_the_page(tab: Any) -> None:
    assert tab.title() == "All <charts>"
    assert tab.locator(".plot.drawn svg").count() == len(FIGURES)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    size = "[plot.clientWidth, plot.querySelector('svg').getBoundingClientRect().width]"
    widths = tab.evaluate(f"[...document.querySelectorAll('.plot')].slice(0, -1).map(plot => {size})")
    assert all(0.9 * full <= drawn <= full + 1 for full, drawn in widths)


def test_marks_are_where_their_values_are_and_in_the_pages_colors(tab: Any) -> None:
    """By Vega's own scene: 0.75 is as far from 0.5 as 0.75 from 1.0; the best system has the accent color of the scheme."""
    marks = tab.evaluate(
        """[...document.querySelectorAll('.plot')[0].querySelectorAll('.mark-symbol path')].map(path => {
            const box = path.getBoundingClientRect();
            return [path.getAttribute('aria-label') ?? '', box.x + box.width / 2, getComputedStyle(path).fill]})"""
    )
    (_, bm25, plain), (_, star, best), (_, few, _) = marks
    assert (few - bm25) / (star - bm25) == pytest.approx((0.6 - 0.5) / (0.75 - 0.5), abs=0.02)
    accent = tab.evaluate("getComputedStyle(document.querySelector('.legend')).getPropertyValue('--accent')").strip().lstrip("#")
    assert best == f"rgb({', '.join(str(int(accent[at : at + 2], 16)) for at in (0, 2, 4))})" != plain


@pytest.mark.parametrize(
    ("index", "mark", "expected"),
    [
        (0, ".mark-symbol path >> nth=1", ["star.<b>", "0.7500", "0.7000 to 0.8000", "n.q [x]", "7"]),
        (4, ".mark-rect path >> nth=1", ["encode", "ran"]),
        (7, ".mark-rect path >> nth=0", ["q.1"]),
        (8, ".mark-symbol path >> nth=1", ["bm25", "d"]),
        (9, ".mark-symbol path >> nth=2", ["stage 2", "2 s"]),
    ],
)
def test_a_mark_tells_its_figures_under_the_pointer(tab: Any, index: int, mark: str, expected: list[str]) -> None:
    plot = tab.locator(".plot").nth(index)
    plot.scroll_into_view_if_needed()
    plot.locator(mark).hover(force=True)
    tip = tab.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    words = tip.inner_text()
    assert all(word in words for word in expected), words


def test_labels_stand_below_their_ticks(tab: Any) -> None:
    """At the ends of an axis, too, where Vega moves them inward."""
    anchors = "one => one.textContent && one.getAttribute('text-anchor')"
    across = tab.locator(".role-axis[aria-label^='X-axis'] .role-axis-label text")
    assert across.count() > 40 and {across.nth(place).evaluate(anchors) for place in range(across.count())} == {"middle"}


def test_every_node_of_the_graph_is_named(tab: Any) -> None:
    labels = tab.locator(".plot").nth(9).locator(".role-axis-label text").all_text_contents()
    assert labels == [f"stage {n}" for n in range(12)]


CONTRAST = """path => {
  const light = color => {
    const linear = one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(one => linear(one / 255));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const [low, high] = [getComputedStyle(path).stroke, getComputedStyle(document.body).backgroundColor].map(light).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""


def test_what_ran_and_what_is_cached_are_told_apart_without_colors(tab: Any) -> None:
    """A filled dot or a ring, each with the contrast that WCAG 2.2 asks of graphics (1.4.11)."""
    dots = tab.locator(".plot").nth(9).locator(".mark-symbol path")
    ran, cached = dots.nth(0), dots.nth(1)
    fill, stroke = (f"one => getComputedStyle(one).{part}" for part in ("fill", "stroke"))
    assert all(dot.evaluate(CONTRAST) >= 3 for dot in (ran, cached))
    assert ran.evaluate(fill) == ran.evaluate(stroke)
    assert cached.evaluate(fill) == tab.evaluate("getComputedStyle(document.body).backgroundColor") != cached.evaluate(stroke)


def test_the_name_of_a_row_is_its_head(tab: Any) -> None:
    """As a screen reader sees it, on a phone too, where rows are cards; and it is no bolder than its figures."""
    heads = tab.locator("table.stack tbody [scope=row]")
    assert heads.all_inner_texts() == ["b", "a", "c", "d"]
    assert heads.nth(0).evaluate("one => one.matches('tr > th:first-child')")
    if tab.viewport_size["width"] > 600:
        assert heads.nth(0).evaluate("one => [getComputedStyle(one).fontWeight, getComputedStyle(one).textAlign]") == ["400", "left"]
        assert tab.get_by_role("rowheader").all_inner_texts() == ["b", "a", "c", "d"]


def test_rows_whose_names_begin_alike_can_be_told_apart(tab: Any) -> None:
    assert tab.locator(".plot").nth(10).locator(".role-axis-label text").all_text_contents()[-4:] == GROUPS


def test_the_nearest_point_of_a_line_tells_its_figures(tab: Any) -> None:
    plot = tab.locator(".plot").nth(2)
    plot.scroll_into_view_if_needed()
    box = plot.locator("svg").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 12)
    tab.mouse.move(box["x"] + box["width"] * 0.92, box["y"] + 14)
    tab.locator("#vg-tooltip-element.visible").wait_for()
    assert "round 9" in tab.locator("#vg-tooltip-element").inner_text()


def column(tab: Any, number: int) -> list[str]:
    return [text.strip() for text in tab.locator(f"table.stack tbody tr > :nth-child({number})").all_inner_texts()]


@pytest.mark.parametrize(
    ("number", "first", "second"),
    [(1, "abcd", "dcba"), (2, "abdc", "dbac"), (3, "dbac", "abdc"), (4, "dabc", "badc")],
    ids=["text", "numbers", "times", "p-values"],
)
def test_a_click_sorts_by_a_column_and_another_turns_it(tab: Any, number: int, first: str, second: str) -> None:
    """Empty cells stay last. On a phone rows are cards, and heads are for screen readers, so keys press them."""
    head = tab.locator(f"table.stack thead th:nth-child({number}) button")
    for expected, order in ((first, "ascending" if number == 1 else "descending"), (second, "descending" if number == 1 else "ascending")):
        head.focus()
        tab.keyboard.press("Enter")
        assert "".join(column(tab, 1)) == expected
        assert tab.locator(f"table.stack thead th:nth-child({number})").get_attribute("aria-sort") == order
    assert tab.locator("th[aria-sort]").count() == 1


def test_a_fold_opens_for_an_anchor_and_draws_what_is_in_it(tab: Any) -> None:
    assert tab.locator("#fold svg").count() == 0
    tab.evaluate("location.hash = 'inside'")
    tab.locator("#fold .drawn svg").wait_for()
    assert tab.locator("#fold").get_attribute("open") is not None


def test_a_page_may_fetch_nothing(browser: Any, chart_page: Path) -> None:
    tab = browser.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.goto(chart_page.as_uri())
    tab.evaluate("new Promise(done => { const image = new Image(); image.onerror = done; image.src = 'file:///x.png' })")
    tab.close()
    assert len(messages) == 1 and "Content Security Policy" in messages[0]
