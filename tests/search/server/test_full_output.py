"""A server whose output is on a full disk: it answers, follows, and counts as before."""

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from flows.serving import serve
from flows.serving.follow import replace_link
from tasks.core.errors import UserError
from tasks.core.retrieval.fusion import Ranked
from tasks.search.server import __main__ as server
from tasks.search.server import served
from tasks.search.server.app import Settings, create_app
from tasks.search.server.log import Log
from tasks.search.server.measures import Measures
from tasks.search.server.served import Current


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes both streams full from then on."""

    def fill() -> None:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, Full())

    return fill


def search(queries: Sequence[str], _k: int) -> list[Ranked]:
    if "bad" in queries:
        raise ValueError("bad")
    return [Ranked(["d1"], [1.0]) for _ in queries]


def test_new_models_are_followed(tmp_path: Path, full: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path, _each: Any = map) -> Any:
        if folder.name == "corrupt":
            raise UserError("wrong")
        return SimpleNamespace(label=folder.name)

    monkeypatch.setattr(served, "load", load)
    for name in ("first", "second", "corrupt", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / served.RECORD).touch()
    replace_link(tmp_path / "current", "first")
    measures = Measures()
    current = Current(tmp_path / "current", measures.swapped, server._say)
    full()
    for name, label, problem in (("second", "second", ""), ("corrupt", "second", "wrong"), ("third", "third", "")):
        replace_link(tmp_path / "current", name)
        current.look()
        assert (current.served.label, current.problem) == (label, problem)
    assert measures.count["swaps"] == 2


def test_no_exception_ends_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "load", lambda *_: SimpleNamespace(label="first"))
    monkeypatch.setattr(served, "POLL_SECONDS", 0)
    current, looks = Current(tmp_path, pytest.fail, pytest.fail), list[str]()

    def fail() -> None:
        looks.append("look")
        if len(looks) == 3:
            current.stop()
        raise RuntimeError("Symlink loop")

    monkeypatch.setattr(current, "look", fail)
    current._watch()
    assert looks == ["look"] * 3


def test_searches_are_answered_and_lost_lines_counted(tmp_path: Path, full: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    current: Any = SimpleNamespace(served=SimpleNamespace(label="m", count=1, documents=None, search=search), since=0.0, problem="")
    measures = Measures()
    log = Log(tmp_path / "queries.jsonl", "plain", partial(server._unlogged, measures))
    monkeypatch.setattr(os, "write", lambda *_: 0)
    full()
    with TestClient(create_app(current, measures, log, Settings())) as client:
        for _ in range(2):
            answer = client.get("/search", params={"q": "a river"})
            assert answer.status_code == 200 and [hit["id"] for hit in answer.json()["hits"]] == ["d1"]
        answer = client.get("/search", params={"q": "bad"})
    assert (answer.status_code, answer.json()) == (500, {"detail": "the search failed; the server's log says why"})
    assert measures.lost == 2


def test_the_follower_says_nothing(full: Callable[[], None]) -> None:
    full()
    serve._say("warning: the champion cannot be served yet")
