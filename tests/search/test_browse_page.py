"""The page of `retemper browse` in a real browser: type, compare, step through lost queries, judge."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.loopback import on_loopback
from tests.search.test_browse import GIVEN, make_client


@pytest.fixture
def address(small: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page over a finished project, on a free port of loopback."""
    monkeypatch.chdir(small.folder)
    with on_loopback(make_client(GIVEN).app) as address:
        yield address


@pytest.fixture(params=[(1400, "light"), (390, "dark")], ids=["wide", "phone"])
def tab(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    """The page, opened; its console must be empty at the end."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(address)
    page.locator("#queries button").first.wait_for()
    yield page
    context.close()
    assert messages == []


def hits(tab: Any, side: int) -> list[str]:
    return [str(doc) for doc in tab.locator(f"#hits{side} > li").evaluate_all("all => all.map(one => one.dataset.doc)")]


def documents_of_run(system: str, query: str) -> list[str]:
    """The first documents of a query in the run of a system."""
    lines = Path(f"data/runs/{system}/dev.trec").read_text(encoding="utf-8").splitlines()
    return [fields[2] for fields in map(str.split, lines) if fields[0] == query][:10]


def test_step_through_lost_queries_and_judge(tab: Any) -> None:
    first, second = (pq.read_table(f"data/values/{name}/dev.parquet")["nDCG@10"].to_pylist() for name in ("tower", "bm25"))
    lost = sum(a - b < -1e-9 for a, b in zip(first, second, strict=True))
    assert tab.locator("#listed").inner_text() == f"tower loses {lost} of {len(first)} dev queries by nDCG@10, against bm25"
    tab.locator("#next").click()
    tab.locator("#message", has_text="in both").wait_for()
    query = json.loads(tab.locator("#queries").get_attribute("data-rows"))[0][0]
    assert hits(tab, 0) == documents_of_run("tower", query)
    assert hits(tab, 1) == documents_of_run("bm25", query)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")

    unjudged = tab.locator("#hits0 > li:not(.relevant)").first
    doc = unjudged.get_attribute("data-doc")
    unjudged.locator(".grades button").first.click()
    tab.locator("#message", has_text=f"judged {doc}: relevant").wait_for()
    assert tab.locator(f'#hits0 > li.relevant[data-doc="{doc}"] button[aria-pressed="true"]').inner_text() == "relevant"
    lines = [line.split("\t") for line in Path("inbox/judged/qrels/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert lines == [[query, doc, "1"]]


def test_a_listed_query_is_asked_by_its_id_alone(tab: Any) -> None:
    """The field has its text without line breaks."""
    asked, typed = tab.evaluate("""async () => {
      const real = window.fetch, asked = [];
      window.fetch = (...request) => { asked.push(new URL(request[0], location)); return real(...request); };
      step(0);
      $("text").value = "river";
      $("text").dispatchEvent(new Event("input"));
      await search();
      const keys = url => [url.searchParams.has("query"), url.searchParams.get("text")];
      return [asked.slice(0, 2).map(keys), asked.slice(2).map(keys)];
    }""")
    assert (asked, typed) == (2 * [[True, None]], 2 * [[False, "river"]])


def test_type_a_query_and_compare_two_other_systems(tab: Any) -> None:
    text = pq.read_table("data/corpus/documents.parquet", columns=["text"])["text"][0].as_py().split()
    tab.locator("#text").fill(" ".join(text[:6]))
    tab.locator("#text").press("Enter")
    tab.locator("#message", has_text="in both").wait_for()
    before = hits(tab, 0)
    assert tab.locator("#name0").inner_text() == "tower" and before
    tab.locator("#first").select_option("hybrid")
    tab.locator("#name0", has_text="hybrid").wait_for()
    assert tab.locator("#hits1 mark").first.inner_text().lower() in " ".join(text).lower()
    tab.locator("#won").click()
    assert tab.locator("#won").get_attribute("aria-pressed") == "true"
    assert tab.locator("#listed").inner_text().startswith("hybrid wins ")


def test_a_late_answer_for_other_systems_is_ignored(tab: Any) -> None:
    """The list for hybrid comes after that for tower, which was chosen last."""
    shown, wanted, late = tab.evaluate("""async () => {
      const real = window.fetch, second = $("second").value;
      const [wanted, late] = await Promise.all(["tower", "hybrid"].map(first => get("/api/queries", {first, second})));
      let release;
      const held = new Promise(done => { release = done; });
      window.fetch = async (...request) => { if (request[0].includes("first=hybrid")) await held; return real(...request); };
      $("first").value = "hybrid";
      const stale = compare();
      $("first").value = "tower";
      await compare();
      release();
      await stale;
      return [rows, wanted, late];
    }""")
    assert shown == wanted != late


@pytest.mark.parametrize(
    ("text", "words", "marked"),
    [
        ("北京大学位于海淀区。", ["海淀", "淀区", "京大"], ["京大", "海淀区"]),
        ("我有一 我", ["我"], ["我"]),  # a single character is no part of a run
        ("Windows系统10, A股", ["Windows", "系统", "股"], ["Windows", "系统", "股"]),
        ("中_文 \U00020000\U00020001中", ["\U00020000\U00020001", "文"], ["文", "\U00020000\U00020001"]),
        ("ที่กำ", ["ที่ก"], ["ที่ก"]),
        ("हिन्दी में", ["हिन्दी"], ["हिन्दी"]),
        ("a cat, cats", ["cat"], ["cat"]),
    ],
)
def test_matched_words_are_marked(tab: Any, text: str, words: list[str], marked: list[str]) -> None:
    text_and_html = tab.evaluate(
        "([text, words]) => { const node = marked(text, words); return [node.textContent, node.innerHTML]; }", [text, words]
    )
    assert text_and_html[0] == text
    assert re.findall("<mark>(.*?)</mark>", text_and_html[1]) == marked
