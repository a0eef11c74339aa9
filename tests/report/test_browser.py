"""The report in a real browser: its numbers are the JSON's, tables are sorted, cases open, anchors lead somewhere, nothing overlaps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.files import write_json
from tests.report.project import make_system, run_report

OVERLAPS = """() => {
  const kinds = "h1, h2, h3, p, td, th, dt, dd, summary, .plot, nav a";
  const shown = [...document.querySelectorAll(kinds)].filter(one => one.getClientRects().length);
  const boxes = shown.map(one => [one, one.getBoundingClientRect()]);
  const hidden = box => box.width <= 1 || box.height <= 1; // heads of tables on a phone, for screen readers
  return boxes.flatMap(([one, a], place) => boxes.slice(place + 1)
    .filter(([other, b]) => !one.contains(other) && !hidden(a) && !hidden(b) && !one.closest("thead") && !other.closest("thead")
      && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([other]) => `${one.textContent.trim().slice(0, 40)} | ${other.textContent.trim().slice(0, 40)}`));
}"""


@pytest.fixture(params=[(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")], ids=lambda param: f"{param[0]} {param[1]}")
def tab(request: pytest.FixtureRequest, browser: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The report of four systems, opened; its console must be empty at the end."""
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("zeta", 0.52), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat", "rows": 3, "recall@100": 0.987654})
    run_report(monkeypatch)
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto((project / "report/report.html").as_uri())
    page.wait_for_function("document.body.dataset.ready !== undefined")
    yield page
    context.close()
    assert messages == []


def rows(tab: Any, section: str) -> list[list[str]]:
    """The cells of the first table of a section, with what is beside its numbers."""
    path = f"section:has(#{section}) tbody"
    cells: list[list[str]] = tab.evaluate(
        f"[...document.querySelector('{path}').rows].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    return cells


def test_every_number_is_the_jsons(tab: Any, project: Path) -> None:
    metrics = {path.stem: json.loads(path.read_text()) for path in (project / "metrics").glob("*.json")}
    assert len(rows(tab, "results")) == len(metrics) == 4
    for cells in rows(tab, "results"):
        name = next(name for name in metrics if name in cells[0])
        test, dev = metrics[name]["test"], metrics[name]["dev"]
        assert [cells[1][:6], cells[2], cells[3]] == [f"{test['AP']:.4f}", f"{test['RR@10']:.4f}", f"{dev['AP']:.4f}"]
    pairs = json.loads((project / "report/significance.json").read_text())["splits"]["test"]
    table_rows = rows(tab, "significance")
    assert len(table_rows) == len(pairs) == 5
    for cells, pair in zip(table_rows, pairs, strict=True):
        assert cells[:4] == [pair["system"], pair["baseline"], f"{pair['difference']:+.4f}", f"{pair['low']:+.4f} to {pair['high']:+.4f}"]
        assert cells[5] == ("<\u00a00.0001" if pair["p_holm"] < 0.0001 else f"{pair['p_holm']:.4f}")
        assert cells[6] == f"{pair['effect']['d']:+.2f}"


def test_nothing_overlaps_or_is_wider_than_the_page(tab: Any) -> None:
    tab.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate(OVERLAPS) == []
    tab.add_style_tag(content="h2 { margin-bottom: -40px; }")
    assert tab.evaluate(OVERLAPS), "what overlaps is found"
    assert tab.locator(".plot").count() == tab.locator(".plot.drawn").count() == 3


def test_sort_open_a_case_hover_and_follow_an_anchor(tab: Any) -> None:
    head = tab.locator("section:has(#results) thead th:nth-child(2) button")
    head.focus()
    tab.keyboard.press("Enter")
    values = [float(cells[1][:6]) for cells in rows(tab, "results")]
    assert values == sorted(values, reverse=True)
    tab.locator("nav a", has_text="Where it fails").click()
    assert 0 <= tab.locator("#weaknesses").bounding_box()["y"] < 900
    case = tab.locator("section:has(#weaknesses) details.example")
    assert not case.locator(".answer").first.is_visible()
    case.locator("summary").click()
    assert case.locator(".answer").first.is_visible()
    dot = tab.locator("section:has(#weaknesses) .mark-symbol path").first
    dot.scroll_into_view_if_needed()
    dot.hover(force=True)
    tab.locator("#vg-tooltip-element.visible", has_text="+0.0500 to +0.1500").wait_for()


def test_on_paper_no_column_is_cut_and_nothing_is_dark_or_to_be_clicked(tab: Any) -> None:
    """As wide as A4 between its margins."""
    tab.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    tab.set_viewport_size({"width": 703, "height": 1000})
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut_tables = tab.evaluate("[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).length")
    assert cut_tables == 0 and tab.locator(".wide").count() > 3
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate(CONTRAST) == []
    assert not tab.locator("nav").is_visible() and tab.locator("th").first.is_visible()
    arrows = tab.evaluate("[...document.querySelectorAll('th button')].map(one => getComputedStyle(one, '::after').display)")
    assert set(arrows) == {"none"}


CONTRAST = """() => {
  const linear = part => part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(part => linear(part / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = one => {
    const color = getComputedStyle(one).backgroundColor;
    return color.endsWith(", 0)") ? ground(one.parentElement) : color;
  };
  const ratio = one => {
    const [dark, bright] = [getComputedStyle(one).color, ground(one)].map(light).sort((a, b) => a - b);
    return (bright + .05) / (dark + .05);
  };
  const said = one => [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("main *")]
    .filter(one => one.getClientRects().length && !one.closest("svg") && said(one) && ratio(one) < 4.5)
    .map(one => one.outerHTML.slice(0, 80));
}"""


def test_text_has_contrast_and_drawings_and_columns_are_named(tab: Any) -> None:
    tab.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert tab.evaluate(CONTRAST) == []
    assert tab.evaluate("[...document.querySelectorAll('th')].every(head => head.scope === (head.closest('thead') ? 'col' : 'row'))")
    drawings = tab.evaluate(
        "[...document.querySelectorAll('.plot svg')].map(one => [one.getAttribute('role'), one.getAttribute('aria-label')])"
    )
    assert [role for role, _ in drawings] == ["img"] * len(drawings) and "AP of each system with 95% intervals" in dict(
        map(reversed, drawings)
    )


def test_a_sort_button_is_seen_when_it_has_the_focus(tab: Any) -> None:
    head = tab.locator("section:has(#results) thead th:nth-child(2) button")
    head.focus()
    box = head.bounding_box()
    assert box["width"] > 20 and box["height"] > 10
    assert tab.evaluate("([x, y]) => document.elementFromPoint(x, y)?.closest('button') !== null", [box["x"] + 5, box["y"] + 5])


def test_a_wide_table_grows_into_the_margins_and_is_scrolled_by_keys_where_it_is_cut(tab: Any) -> None:
    tab.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    wide = tab.locator("section:has(#significance) .wide").first
    width, scroll_width, stop = (wide.evaluate(f"one => one.{attribute}") for attribute in ("clientWidth", "scrollWidth", "tabIndex"))
    assert width == scroll_width and stop == -1
    if tab.viewport_size["width"] > 1000:
        assert width > 860, "wider than the text"
        tab.set_viewport_size({"width": 900, "height": 900})
        tab.wait_for_timeout(500)
        assert wide.evaluate("one => one.tabIndex") == 0
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
