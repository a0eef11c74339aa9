"""The search page in a real browser: search, open a result, the address, a key, errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.search.server.app import Settings
from tasks.search.server.log import Log
from tests.search.server.test_app import search_results


@pytest.fixture(params=[(1200, "light"), (390, "dark")], ids=["wide", "phone"])
def context(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    width, scheme = request.param
    page_context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    yield page_context
    page_context.close()


def open_page(context: Any, address: str, messages: list[str]) -> Any:
    tab = context.new_page()
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(address)
    return tab


def hit_ids(tab: Any) -> list[str]:
    return [str(doc) for doc in tab.locator("#hits > li").evaluate_all("all => all.map(one => one.dataset.doc)")]


def test_search_and_open_a_result(context: Any, serving: Any, tmp_path: Path) -> None:
    messages: list[str] = []
    log = tmp_path / "log.jsonl"
    with serving(log=Log(log, "plain", lambda _: None)) as server:
        tab = open_page(context, server.url, messages)
        tab.locator("#text:focus").wait_for()  # a browser that is to focus it after we have says so
        tab.locator("#text").fill("a river in the north")
        tab.locator("#text").press("Enter")
        tab.locator("#message", has_text="10 results").wait_for()
        expected = [doc for doc, _ in search_results("hybrid", "a river in the north", 10)]
        assert hit_ids(tab) == expected
        assert "hybrid" in tab.locator("#message").inner_text()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        second = tab.locator("#hits > li").nth(1)
        assert not second.locator(".whole").is_visible()
        with tab.expect_response(lambda response: response.url.endswith("/click")) as clicked:
            second.locator("summary").click()
        assert clicked.value.ok and second.locator(".whole").is_visible()
        *searches, click = (json.loads(line) for line in log.read_text().splitlines())  # the browser may send a request again
        assert {event["event"] for event in searches} == {"search"} and click["id"] in {event["id"] for event in searches}
        assert (click["event"], click["doc"], click["position"]) == ("click", expected[1], 2)
        tab.locator("#k").select_option("20")
        tab.locator("#message", has_text="20 results").wait_for()
        again = open_page(context, tab.url, messages)
        again.locator("#message", has_text="20 results").wait_for()
        assert again.locator("#text").input_value() == "a river in the north", "an address brings its results"
        dark = "rgb(21, 24, 28)" if context.pages[0].viewport_size["width"] == 390 else "rgb(255, 255, 255)"
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert messages == []


def test_a_key_is_asked_for(context: Any, serving: Any) -> None:
    with serving(Settings(key="open sesame")) as server:
        tab = open_page(context, f"{server.url}/?q=river", [])
        tab.locator("#key").fill("open sesame")
        assert hit_ids(tab) == []
        tab.locator("#keyed button").click()
        tab.locator("#message", has_text="10 results").wait_for()
        assert not tab.locator("#keyed").is_visible()
        assert "sesame" not in tab.url
