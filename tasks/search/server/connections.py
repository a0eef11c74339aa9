"""Bound open connections in number and time, so that idle ones do not keep out clients with requests, nor answers that nobody reads."""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 4096  # open connections; more are closed at once
WAIT_SECONDS = 10.0  # for the head of a request
STALL_SECONDS = 30.0  # in which a client has to read some of its answer
RESERVE = 256  # open files for everything else


def connection_limit() -> int:
    """Raise the limit of open files if possible, and return how many connections may be open: MOST, or fewer if the limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST + RESERVE if hard == resource.RLIM_INFINITY else min(hard, MOST + RESERVE)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(1, limit - RESERVE)


class Bounded(H11Protocol):
    """A connection that is closed if the head of a request takes too long, if there are too many, or if the client stops reading."""

    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that writing is paused as long as any byte waits for the client
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
        self._stop_checking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_less()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_checking()

    def _expect_less(self) -> None:
        self._stalled = self.loop.call_later(STALL_SECONDS, self._check_reader, self.transport.get_write_buffer_size())

    def _check_reader(self, before: int) -> None:
        """Drop the connection, with the rest of the answer, if as many bytes wait as before: `close` would wait for the client."""
        if self.transport.get_write_buffer_size() < before:
            self._expect_less()
        else:
            self.transport.abort()

    def _stop_checking(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _wait(self) -> None:
        self._late = self.loop.call_later(WAIT_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
