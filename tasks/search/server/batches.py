"""Search concurrent requests in batches. The requests that wait when a batch ends are the next batch, so a lone query never waits.

The queue is bounded. A request that does not fit is refused at once, not answered late.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from tasks.core.retrieval.fusion import Ranked
from tasks.search.server.served import Served


class Full(Exception):
    """The queue has no room for a request."""


class Left(Exception):
    """The client of a request has left before the search."""


@dataclass(frozen=True)
class Answer:
    """The lists of one request, all by the same model, and the title and text of at least their documents, if the server has them."""

    served: Served
    lists: Sequence[Ranked]
    texts: Mapping[str, tuple[str, str]] | None = None


@dataclass(frozen=True)
class Request:
    """The queries of one request, the future that its answer goes to, and whether its client has `left`."""

    queries: Sequence[str]
    k: int
    answer: asyncio.Future[Answer] = field(compare=False)
    left: Callable[[], Awaitable[bool]] = field(compare=False)


class Batches:
    """Searches in its own thread, at most `most` queries at a time. A larger request is a batch by itself."""

    def __init__(self, current: Callable[[], Served], *, most: int, waiting: int, searched: Callable[[int], None] = lambda _: None) -> None:
        """`waiting`: the number of queries that may wait. `searched` is called with the number of queries of every batch."""
        self._current, self._most, self._waiting, self._searched = current, most, waiting, searched
        self._queue: asyncio.Queue[Request] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self.queued = 0  # queries

    async def ask(self, queries: Sequence[str], k: int, left: Callable[[], Awaitable[bool]]) -> Answer:
        """The answer to a request. Raises Full if the queue has no room for it, and any error of the search.

        If `left` is true when its turn comes, it is not searched: Left.
        """
        if self.queued + len(queries) > self._waiting:
            raise Full
        request = Request(queries, k, asyncio.get_running_loop().create_future(), left)
        self.queued += len(queries)
        self._queue.put_nowait(request)
        return await request.answer

    async def run(self) -> None:
        """Answer requests until this is cancelled."""
        postponed: Request | None = None  # a request that did not fit into the last batch
        while True:
            batch = [postponed or await self._queue.get()]
            count, postponed = len(batch[0].queries), None
            while postponed is None and not self._queue.empty():
                waiting = self._queue.get_nowait()
                if count + len(waiting.queries) > self._most:
                    postponed = waiting
                else:
                    batch.append(waiting)
                    count += len(waiting.queries)
            self.queued -= count
            await self._answer([request for request in batch if await _is_wanted(request)])

    async def _answer(self, batch: Sequence[Request]) -> None:
        """Search all requests with the same k at once. If that fails, search each by itself, so that none fails because of another."""
        loop, served = asyncio.get_running_loop(), self._current()  # a new model counts from the next batch on
        for k in sorted({request.k for request in batch}):
            requests = [request for request in batch if request.k == k]
            try:
                found = await loop.run_in_executor(self._thread, _search, served, requests)
            except Exception as error:
                if len(requests) == 1:
                    _resolve(requests[0], error)
                else:
                    for request in requests:
                        await self._answer([request])
                continue
            self._searched(sum(len(request.queries) for request in requests))
            start = 0
            for request in requests:
                end = start + len(request.queries)
                _resolve(request, Answer(served, found.lists[start:end], found.texts))
                start = end


async def _is_wanted(request: Request) -> bool:
    """Whether a request still needs an answer."""
    if not request.answer.done() and await request.left():
        _resolve(request, Left())
    return not request.answer.done()


def _search(served: Served, requests: Sequence[Request]) -> Answer:
    """The lists of all requests, with texts: they are looked up here, as other clients would wait for the event loop."""
    lists = served.search([query for request in requests for query in request.queries], requests[0].k)
    if served.documents is None:
        return Answer(served, lists)
    docs = list(dict.fromkeys(doc for ranked in lists for doc in ranked.documents))
    return Answer(served, lists, dict(zip(docs, served.documents.texts(docs), strict=True)))


def _resolve(request: Request, result: Answer | Exception) -> None:
    with suppress(asyncio.InvalidStateError):  # its client has left
        if isinstance(result, Answer):
            request.answer.set_result(result)
        else:
            request.answer.set_exception(result)
