"""Batches without a model: what is searched together, what is refused, whose failure is whose."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.core.retrieval.fusion import Ranked
from tasks.search.server.app import Settings, create_app
from tasks.search.server.batches import Answer, Batches, Full
from tasks.search.server.connections import Bounded
from tasks.search.server.measures import Measures
from tests.loopback import serve


class Fake:
    """A model that remembers its batches; it fails for `bad`, and waits for `gate`."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.gate = threading.Event()
        self.documents: Any = None
        self.label, self.is_busy = "fake", False

    def search(self, queries: Sequence[str], k: int) -> list[Ranked]:
        self.is_busy = True
        self.gate.wait(30)
        self.batches.append((list(queries), k))
        if "bad" in queries:
            raise ValueError("bad")
        return [Ranked([f"{query}{k}"], [1.0]) for query in queries]


async def stays() -> bool:
    """No client leaves."""
    return False


def run(fake: Any, *requests: tuple[Sequence[str], int], most: int = 4, waiting: int = 100) -> list[Any]:
    """The answers to requests that come while the first is being searched."""

    async def ask_all_at_once() -> list[Any]:
        batches = Batches(lambda: fake, most=most, waiting=waiting)
        running = asyncio.create_task(batches.run())
        tasks = [asyncio.create_task(batches.ask(queries, k, stays)) for queries, k in requests]
        await asyncio.sleep(0.05)
        fake.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        running.cancel()
        assert batches.queued == 0
        return answers

    return asyncio.run(ask_all_at_once())


def test_requests_wait_together_and_each_gets_its_own() -> None:
    fake = Fake()
    answers = run(fake, (["a"], 1), (["b", "c"], 1), (["d"], 2), (["e"], 1), (["f", "g", "h", "i", "j"], 1))
    assert [[ranked.documents for ranked in answer.lists] for answer in answers] == [
        [["a1"]],
        [["b1"], ["c1"]],
        [["d2"]],
        [["e1"]],
        [["f1"], ["g1"], ["h1"], ["i1"], ["j1"]],
    ]
    assert fake.batches == [(["a", "b", "c"], 1), (["d"], 2), (["e"], 1), (["f", "g", "h", "i", "j"], 1)]


def test_texts_are_looked_up_once_a_batch_and_not_by_the_event_loop() -> None:
    """Otherwise all other clients would wait for them."""
    fake, lookups = Fake(), list[tuple[str, list[str]]]()

    def texts(docs: list[str]) -> list[tuple[str, str]]:
        lookups.append((threading.current_thread().name.partition("_")[0], docs))
        return [(f"title {doc}", doc) for doc in docs]

    fake.documents = SimpleNamespace(texts=texts)
    answers = run(fake, (["a", "b"], 1), (["b"], 1), (["c"], 1))
    assert lookups == [("search", ["a1", "b1", "c1"])]
    for answer in answers:
        assert [answer.texts[doc] for ranked in answer.lists for doc in ranked.documents] == [
            (f"title {doc}", doc) for ranked in answer.lists for doc in ranked.documents
        ]
    assert [answer.texts for answer in run(Fake(), (["a"], 1))] == [None]


def test_a_query_that_fails_fails_alone() -> None:
    answers = run(Fake(), (["a"], 1), (["bad"], 1), (["b"], 1))
    assert [type(answer) for answer in answers] == [Answer, ValueError, Answer]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_query_whose_client_has_left_is_not_searched(method: str) -> None:
    fake, measures = Fake(), Measures()
    current: Any = SimpleNamespace(served=fake, since=0.0, problem="")
    app = create_app(current, measures, None, Settings())

    def request(query: str) -> bytes:
        body = json.dumps({"query": query})
        if method == "GET":
            return f"GET /search?q={query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        head = f"POST /search HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        return f"{head}\r\n\r\n{body}".encode()

    def wait_until(is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < end
            time.sleep(0.01)

    with serve(app, http=Bounded) as server, ExitStack() as stack:
        clients = list[socket.socket]()
        for query, waiting in (("first", 0), ("left", 1), ("last", 2)):  # the first is being searched, the others wait
            clients.append(stack.enter_context(socket.create_connection(server.servers[0].sockets[0].getsockname(), 30)))
            clients[-1].sendall(request(query))
            wait_until(lambda: fake.is_busy and f"retemper_queued {waiting}.0" in measures.text("m", problem=False).decode())  # noqa: B023
        clients.pop(1).close()
        wait_until(lambda: len(server.server_state.connections) == 2)
        fake.gate.set()
        answers = [b"".join(iter(lambda client=client: client.recv(4096), b"")) for client in clients]
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 2
    assert fake.batches == [(["first"], 10), (["last"], 10)]


def test_what_the_queue_cannot_hold_is_refused_at_once() -> None:
    answers = run(Fake(), (["a", "b"], 1), (["c", "d"], 1), (["e"], 1), waiting=3)
    assert [type(answer) for answer in answers] == [Answer, Full, Answer]


@pytest.mark.parametrize(("part", "expected"), [(0.5, 0.5), (0.99, 0.99), (0.0, 0.01), (1.0, 1.0)])
def test_quantiles_by_nearest_rank(part: float, expected: float) -> None:
    measures = Measures()
    for number in range(100, 0, -1):
        measures.answered("/search", 200, number / 100)
    measures.answered("/search", 503, 9.0)
    measures.answered("/health", 200, 9.0)
    assert measures.quantile(part) == expected
    assert measures.summary() == "102 requests, 1 errors, 0 swaps, p50 500.0 ms, p99 990.0 ms"
