"""`retemper watch`: in a terminal, as JSON, over HTTP, and its page in a browser, beside real runs of a toy project."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi.testclient import TestClient

from flows.watching.record import RECORD, read
from flows.watching.watch import create_app
from tests.loopback import on_loopback


def wait_for_line(folder: Path, stage: str, text: str) -> None:
    """Wait for a line of a stage."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if (run := read(folder / RECORD)) and any(entry.name == stage and entry.said == text for entry in run.stages):
            return
        time.sleep(0.05)
    raise AssertionError(f"{stage} never said {text!r}")


def test_a_run_is_followed_and_its_end_told(served_toy: Any) -> None:
    assert served_toy.call("watch", "--text").stdout == "no run is recorded in this project yet; start one with retemper run\n"
    served_toy.set_acts(encoders__a="hang")
    run = served_toy.start("run", "evaluate@a")
    served_toy.wait_for_start("encoders/a")
    wait_for_line(served_toy.folder, "train@a", "half way")
    lines = served_toy.call("watch", "--text").stdout.splitlines()
    assert lines[0].startswith("retemper run evaluate@a, in this folder, since 20")
    assert lines[0].partition(": ")[2].startswith("running, 1 of 3 stages, ") and lines[0].endswith("left unknown")
    assert lines[1:] == ["  train@a: half way", "  waiting: evaluate@a"]
    (entry,) = json.loads(served_toy.call("watch", "--json").stdout)
    assert (entry["state"], entry["process"], entry["place"]) == ("running", run.pid, "this folder")
    assert [(stage["name"], stage["state"]) for stage in entry["stages"]] == [
        ("prepare", "ran"),
        ("train@a", "running"),
        ("evaluate@a", "waiting"),
    ]
    client = TestClient(create_app(served_toy.folder), base_url="http://localhost")
    page = client.get("/api/now").json()
    assert page["title"].startswith("running, 1 of 3 stages") and "half way" in page["parts"]["now"]

    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=300)
    assert served_toy.wait_for_end()
    assert served_toy.call("watch", "--text").stdout.partition(": ")[2].startswith("killed (its process is gone), 1 of 3 stages")
    served_toy.set_acts(encoders__a="fail")
    assert served_toy.call("run", "evaluate@a").returncode == 2
    lines = served_toy.call("watch", "--text").stdout.splitlines()
    assert lines[0].partition(": ")[2].startswith("failed, 1 of 3 stages")
    assert lines[1:] == ["  train@a: corpus.tsv:7: found 2 columns, expected 3; add the tab"]
    served_toy.set_acts()
    served_toy.run("evaluate@a")
    assert served_toy.call("watch", "--text").stdout.partition(": ")[2].startswith("done, 3 of 3 stages")
    before = (served_toy.folder / RECORD).read_bytes()
    served_toy.run("evaluate@a")
    assert (served_toy.folder / RECORD).read_bytes() == before, "a run without work leaves the record of the last one that had some"


def test_what_the_server_refuses(finished_toy: Any) -> None:
    client = TestClient(create_app(finished_toy.folder), base_url="http://localhost")
    assert client.get("/").status_code == 200
    for place in ("none", "../..", "/etc"):
        assert client.get("/api/now", params={"place": place}).json()["parts"].keys() == {"runs", "state"}
        assert client.get("/timeline", params={"place": place}).status_code == 404
    for path in ("/none", "/report/../../params.yaml", "/params.yaml"):
        assert client.get(path).status_code == 404
    assert client.get("/timeline").headers["content-type"].startswith("text/html")
    for headers in ({"host": "elsewhere.org"}, {"host": "testserver"}, {"origin": "http://elsewhere.org"}):
        assert client.get("/api/now", headers=headers).status_code == 403


@pytest.fixture
def address(finished_toy: Any) -> Iterator[str]:
    """The page over a finished project, on a free port of loopback."""
    with on_loopback(create_app(finished_toy.folder)) as address:
        yield address


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (390, "dark")])
def test_the_page_follows_in_a_browser(browser: Any, address: str, finished_toy: Any, width: int, scheme: str) -> None:
    loss = finished_toy.folder / "data/curves/a/plots/metrics/train/loss.tsv"
    loss.parent.mkdir(parents=True)
    loss.write_text("step\tloss\n0\t1.5\n1\t0.75\n")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(address)
    tab.locator("#state b.done").wait_for()
    tab.locator("#charts svg").first.wait_for()
    assert "done, 6 of 6 stages" in tab.title()
    assert tab.locator(".gantt > div").count() == 6 and "0.5000" in tab.locator("#results").inner_text()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no scrolling sideways"
    loss.write_text("step\tloss\n0\t1.5\n1\t0.75\n2\t0.5\n")
    script = tab.locator("#charts > div:only-child script")
    deadline = time.monotonic() + 120
    while '"y":0.5' not in str(script.text_content()):
        assert time.monotonic() < deadline
        tab.wait_for_timeout(50)
    tab.locator("#charts svg").first.wait_for()
    assert messages == []
    context.close()


def test_what_is_read_stays_while_the_rest_changes(browser: Any, address: str, finished_toy: Any) -> None:
    """The log keeps its focus, its scrolling, and the selected text; a tree that is gone leaves the page as it is."""
    record = json.loads((finished_toy.folder / RECORD).read_text())
    record |= {"process": os.getpid(), "born": psutil.Process().create_time(), "ended": None}
    record["stages"][-1] |= {"state": "running", "ended": None}
    record["stages"][-2] |= {"state": "running", "ended": None}
    (finished_toy.folder / RECORD).write_text(json.dumps(record))
    names = [stage["name"] for stage in record["stages"][-2:]]
    logs = [finished_toy.folder / f".retemper/logs/{name}.log" for name in names]
    for log in logs:
        log.write_text(f"{'long ' * 99}\n")
    tab = browser.new_page(viewport={"width": 390, "height": 900})
    tab.goto(f"{address}/?place=this%20folder")
    log = tab.get_by_role("region", name=f"end of the log of {names[1]}")
    log.wait_for()
    tab.evaluate("getSelection().selectAllChildren(document.querySelector('#state code'))")
    log.focus()
    tab.evaluate("scrollTo(0, 70)")
    logs[1].write_text(f"{'long ' * 99}\nmore\n")
    tab.get_by_text("more", exact=False).last.wait_for()
    before = tab.locator("#state b").inner_text()
    tab.locator("#state b").filter(has_not_text=before).wait_for()
    assert log.evaluate("log => [log === document.activeElement, scrollY]") == [True, 70]
    assert tab.evaluate("getSelection().toString()") == record["command"]
    record["stages"][-2]["state"] = "ran"
    (finished_toy.folder / RECORD).write_text(json.dumps(record))
    tab.locator("article").nth(1).wait_for(state="detached")
    assert tab.locator("article h2").inner_text().startswith(names[1])
    (finished_toy.folder / RECORD).unlink()
    tab.get_by_text("No run in this folder").wait_for()
    assert tab.locator("article").count() == 1 and "gone" not in tab.evaluate("document.body.className")
    tab.close()


def test_long_names_fit_a_phone(browser: Any, address: str, finished_toy: Any) -> None:
    record = json.loads((finished_toy.folder / RECORD).read_text())
    record |= {"process": os.getpid(), "born": psutil.Process().create_time(), "ended": None, "command": f"retemper run {'a' * 90}"}
    record["stages"][0] |= {"state": "running", "name": f"train@{'b' * 90}", "said": "c" * 90}
    record["stages"][1] |= {"state": "failed", "name": f"train@{'d' * 90}", "problem": "e" * 90}
    record["stages"][2] |= {"state": "waiting", "name": f"train@{'f' * 90}"}
    (finished_toy.folder / RECORD).write_text(json.dumps(record))
    tree = finished_toy.folder / ".retemper/tree"
    finished_toy.command("git", "worktree", "add", "--detach", str(tree))
    (tree / RECORD).parent.mkdir()
    (tree / RECORD).write_text(json.dumps(record))
    tab = browser.new_page(viewport={"width": 390, "height": 900})
    tab.goto(address)
    tab.locator("article").nth(1).wait_for()
    tab.locator("#stages p").first.wait_for()
    assert tab.locator("#runs div").count() == 2
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no scrolling sideways"
    tab.close()


def test_a_taken_port_is_one_line(finished_toy: Any) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        result = finished_toy.call("watch", "--port", str(port))
    assert (result.returncode, result.stderr) == (2, f"retemper: --port {port}: is taken, expected a free one; choose another, or 0\n")


def test_the_same_port_again_right_after_the_last_server(finished_toy: Any) -> None:
    """It closed connections of an open page, so the system still holds the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        process = finished_toy.start("watch", "--port", str(port))
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"http://127.0.0.1:{port}/")
            with socket.create_connection(("127.0.0.1", port), 60) as page:
                page.sendall(b"GET /none HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert page.recv(64).startswith(b"HTTP/1.1 404")
                process.terminate()
                while page.recv(4096):  # until the server has closed it
                    pass
                process.wait(60)
        finally:
            process.kill()


def test_ctrl_c_ends_it_quietly(finished_toy: Any) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would ours
    try:
        process = finished_toy.start("watch")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors and process.returncode in (0, 130)
