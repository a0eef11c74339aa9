"""Search concurrent requests in batches. The requests that wait when a batch ends are the next batch, so a lone query never waits.

The queue is bounded. A request that does not fit is refused at once, not answered late.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from tasks.core.retrieval.fusion import Ranked
from tasks.search.server.served import Served


class Full(Exception):
    """The queue has no room for a request."""


@dataclass(frozen=True)
class Answer:
    """The lists of one request, all by the same model."""

    served: Served
    lists: Sequence[Ranked]


@dataclass(frozen=True)
class Asked:
    """The queries of one request, and the future that its answer goes to."""

    queries: Sequence[str]
    k: int
    answer: asyncio.Future[Answer] = field(compare=False)


class Batches:
    """Searches in its own thread, at most `most` queries at a time. A larger request is a batch by itself."""

    def __init__(self, current: Callable[[], Served], *, most: int, waiting: int, searched: Callable[[int], None] = lambda _: None) -> None:
        """`waiting`: the number of queries that may wait. `searched` is called with the number of queries of every batch."""
        self._current, self._most, self._waiting, self._searched = current, most, waiting, searched
        self._queue: asyncio.Queue[Asked] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self.queued = 0  # queries

    async def ask(self, queries: Sequence[str], k: int) -> Answer:
        """The answer to a request. Raises Full if the queue has no room for it, and any error of the search."""
        if self.queued + len(queries) > self._waiting:
            raise Full
        asked = Asked(queries, k, asyncio.get_running_loop().create_future())
        self.queued += len(queries)
        self._queue.put_nowait(asked)
        return await asked.answer

    async def run(self) -> None:
        """Answer requests until this is cancelled."""
        held: Asked | None = None  # a request that did not fit into the last batch
        while True:
            batch = [held or await self._queue.get()]
            count, held = len(batch[0].queries), None
            while held is None and not self._queue.empty():
                waiting = self._queue.get_nowait()
                if count + len(waiting.queries) > self._most:
                    held = waiting
                else:
                    batch.append(waiting)
                    count += len(waiting.queries)
            self.queued -= count
            await self._answer([asked for asked in batch if not asked.answer.done()])

    async def _answer(self, batch: Sequence[Asked]) -> None:
        """Search all requests with the same k at once. If that fails, search each by itself, so that none fails because of another."""
        loop, served = asyncio.get_running_loop(), self._current()  # a new model counts from the next batch on
        for k in sorted({asked.k for asked in batch}):
            together = [asked for asked in batch if asked.k == k]
            try:
                lists = await loop.run_in_executor(self._thread, _search, served, together)
            except Exception as error:
                if len(together) == 1:
                    _tell(together[0], error)
                else:
                    for asked in together:
                        await self._answer([asked])
                continue
            self._searched(sum(len(asked.queries) for asked in together))
            start = 0
            for asked in together:
                end = start + len(asked.queries)
                _tell(asked, Answer(served, lists[start:end]))
                start = end


def _search(served: Served, together: Sequence[Asked]) -> list[Ranked]:
    return served.search([query for asked in together for query in asked.queries], together[0].k)


def _tell(asked: Asked, what: Answer | Exception) -> None:
    with suppress(asyncio.InvalidStateError):  # its client has left
        if isinstance(what, Answer):
            asked.answer.set_result(what)
        else:
            asked.answer.set_exception(what)
