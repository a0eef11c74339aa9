"""A page's server in a thread of the test."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serve(app: Any, **settings: Any) -> Iterator[uvicorn.Server]:
    """A server of `app` on a free port of loopback."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def on_loopback(app: Any) -> Iterator[str]:
    """The address of `app`, served."""
    with serve(app) as server:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
