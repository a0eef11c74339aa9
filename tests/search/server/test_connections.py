"""Connections that ask for nothing, or too slowly, or are too many."""

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from uvicorn.server import ServerState

from tasks.search.server import connections, limits
from tasks.search.server.connections import Bounded, connection_limit
from tests.loopback import serve

LATE = 1.0  # seconds, in place of those of a real server
PATIENCE = 30  # seconds until a test fails
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
BODY = b'{"query": "x"}'


@contextmanager
def serving(most: int) -> Iterator[tuple[Callable[[], socket.socket], Callable[[], int]]]:
    """Functions that open a connection and count the server's: it may accept one after the client sees it open."""
    app = FastAPI()

    @app.post("/")
    async def search(request: Request) -> Any:
        return await limits.body(request, limits.Search)

    with serve(app, http=Bounded, limit_concurrency=most) as server, ExitStack() as stack:
        address = server.servers[0].sockets[0].getsockname()
        open_one = lambda: stack.enter_context(socket.create_connection(address, PATIENCE))  # noqa: E731
        yield open_one, lambda: len(server.server_state.connections)


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server closes; without an end, the test fails by its time-out."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("content", [b"", b"POST / HT", HEAD[:-2]], ids=["nothing", "part of a line", "part of a head"])
def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", LATE)
    with serving(10) as (connect, _):
        connection = connect()
        connection.sendall(content)
        assert read_to_end(connection) == b""


def test_a_body_that_does_not_come_is_answered_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", LATE)
    with serving(10) as (connect, _):
        connection = connect()
        connection.sendall(HEAD + BODY[:5])
        response = read_to_end(connection)
        assert response.startswith(b"HTTP/1.1 408 ") and b"took more than 1 second" in response


def test_the_head_of_a_second_request_is_waited_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(10) as (connect, _):
        connection = connect()
        connection.sendall(HEAD + BODY)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr(connections, "WAIT_SECONDS", LATE)
        connection.sendall(HEAD[:30])
        assert b"HTTP/1.1 200 " not in read_to_end(connection)


def test_more_than_the_most_are_closed_and_those_within_it_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WAIT_SECONDS", PATIENCE)
    with serving(3) as (connect, open_connections):
        first, idle, third = connect(), connect(), connect()
        while open_connections() < 3:
            time.sleep(0.01)
        assert read_to_end(connect()) == b""
        first.sendall(HEAD + BODY)
        assert first.recv(4096).startswith(b"HTTP/1.1 503 "), "uvicorn's own limit counts those that wait, too"
        idle.close()
        third.close()


def test_an_answer_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close`, after the keep-alive time, waits for the client to read it."""
    monkeypatch.setattr(connections, "STALL_SECONDS", LATE)
    app = FastAPI()
    app.get("/")(lambda: "x" * 20_000_000)  # more than a kernel keeps
    with serve(app, http=Bounded, timeout_keep_alive=1) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.servers[0].sockets[0].getsockname())
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(10) == b"HTTP/1.1 2"
        end = time.monotonic() + PATIENCE
        while server.server_state.connections:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_client_that_reads_slowly_gets_its_answer() -> None:
    """Its connection is dropped only once it has read nothing since the last look."""
    waiting, timers, aborted = [30], list[tuple[Any, ...]](), list[str]()

    def call_later(*timer: Any) -> Any:
        timers.append(timer)
        return SimpleNamespace(cancel=timers.clear)

    loop: Any = SimpleNamespace(call_later=call_later)
    transport: Any = SimpleNamespace(
        get_extra_info=lambda *_: None,
        set_write_buffer_limits=lambda **limits: waiting.append(limits["high"]),
        get_write_buffer_size=lambda: waiting[0],
        abort=lambda: aborted.append("abort"),
        close=lambda: aborted.append("close"),
    )
    connection = Bounded(uvicorn.Config(FastAPI()), ServerState(), {}, loop)
    connection.connection_made(transport)
    assert waiting.pop() == 0, "a single byte that waits is noticed"
    connection._stop_waiting()
    connection.pause_writing()
    for size in (20, 10):
        waiting[0] = size
        seconds, check, *before = timers.pop()
        check(*before)
        assert seconds == connections.STALL_SECONDS and aborted == []
    connection.resume_writing()
    assert timers == [], "all has been read"
    connection.pause_writing()
    _, check, *before = timers.pop()
    check(*before)
    assert aborted == ["abort"] and timers == []
    connection.pause_writing()
    connection.connection_lost(None)
    assert timers == [], "the connection is gone"


def test_open_files_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, limits_set = (1024, 2048), list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(resource, "setrlimit", lambda _, value: limits_set.append(value))
    assert connection_limit() == 2048 - connections.RESERVE and limits_set == [(2048, 2048)]
    limit = (1024, resource.RLIM_INFINITY)
    assert connection_limit() == connections.MOST and limits_set[1:] == [(connections.MOST + connections.RESERVE, resource.RLIM_INFINITY)]
    limit = (10_000, 20_000)
    assert connection_limit() == connections.MOST and len(limits_set) == 2
