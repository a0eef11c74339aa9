"""Bound open connections in number and time, so that idle ones do not keep out clients with requests."""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 4096  # open connections; more are closed at once
WAIT_SECONDS = 10.0  # for the head of a request
RESERVE = 256  # open files for everything else


def connection_limit() -> int:
    """Raise the limit of open files if possible, and return how many connections may be open: MOST, or fewer if the limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST + RESERVE if hard == resource.RLIM_INFINITY else min(hard, MOST + RESERVE)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, limit - RESERVE)


class Bounded(H11Protocol):
    """A connection that is closed if the head of a request takes too long, or if there are too many connections."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the head of a request is complete
            self._stop_waiting()
        elif self._late is None:  # part of the next head
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(WAIT_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
