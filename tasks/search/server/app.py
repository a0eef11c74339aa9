"""The endpoints: /search, /click, /health, /metrics, and a page at /."""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse

from tasks.core.charts.local import SOURCES
from tasks.core.errors import printable
from tasks.core.retrieval.fusion import Ranked
from tasks.search.server import limits
from tasks.search.server.batches import Answer, Batches, Full, Left
from tasks.search.server.log import Log
from tasks.search.server.measures import Measures
from tasks.search.server.served import Current

OPEN = ("/", "/health")  # need no key: the page asks the user for it, and a probe has none
KNOWN = (*OPEN, "/search", "/click", "/metrics")


@dataclass(frozen=True)
class Settings:
    """Settings of the server. `key`: the API key; empty: none is required. `hosts`: accepted names of the server. `waiting`: queue size."""

    key: str = ""
    hosts: Sequence[str] = ("*",)
    waiting: int = limits.QUEUE


def create_app(current: Current, measures: Measures, log: Log | None, settings: Settings) -> FastAPI:
    """Make the application. It searches during its lifespan; requests from before the end are answered."""
    batches = Batches(lambda: current.served, most=limits.BATCH, waiting=settings.waiting, searched=measures.searched)
    measures.queued(lambda: batches.queued)
    page = files("tasks.search.server").joinpath("page.html").read_text(encoding="utf-8")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(batches.run())
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    app = FastAPI(title="retemper serve", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    add_middleware(app, measures, settings)
    add_routes(app, current, measures, log=log, batches=batches, page=page)
    return app


def add_middleware(app: FastAPI, measures: Measures, settings: Settings) -> None:
    """Refuse requests without the key or with a wrong host, answer every failure in one form, and measure every answer.

    Without a key, any page can make a browser GET /search, as an image for instance, and so write to the log; a key, or JSON, it cannot
    send unasked.
    """

    @app.middleware("http")
    async def measured(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        start, path = time.perf_counter(), request.url.path
        request.state.left = request.is_disconnected  # of this request: that of an endpoint, behind a middleware, is never true
        response: Response
        if not limits.is_host(name := request.headers.get("host", ""), settings.hosts):
            response = refusal(400, f"found the host {limits.printable_text(name)}, expected a name of this server; add --allow-host NAME")
        elif limits.is_of_other_site(request) and request.method == "GET" and path == "/search" and not settings.key:
            response = refusal(403, "found a request by a page of another site, expected POST with JSON, or a server with a key")
        elif path not in OPEN and not limits.is_authorized(request, settings.key):
            response = refusal(401, "no valid key; send Authorization: Bearer KEY")
            response.headers["WWW-Authenticate"] = "Bearer"
        else:
            try:
                response = await answer(request)
            except Exception as error:
                with suppress(OSError):  # stderr may be on the same full disk
                    print(f"retemper: error: {path}: {printable(f'{type(error).__name__}: {error}')}", file=sys.stderr, flush=True)
                response = refusal(500, "the search failed; the server's log says why")
        response.headers["Content-Security-Policy"] = SOURCES
        response.headers["X-Content-Type-Options"] = "nosniff"
        measures.answered(path if path in KNOWN else "other", response.status_code, time.perf_counter() - start)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return refusal(422, limits.validation_message(error.errors()[0]))


def add_routes(app: FastAPI, current: Current, measures: Measures, *, log: Log | None, batches: Batches, page: str) -> None:
    """Add the endpoints."""

    async def answer(request: Request, queries: Sequence[str], k: int) -> list[dict[str, Any]]:
        texts = [limits.checked_query(query) for query in queries]
        try:
            answer: Answer = await batches.ask(texts, k, request.state.left)
        except Full:
            raise HTTPException(503, "too many queries are waiting; try again", {"Retry-After": "1"}) from None
        except Left:
            raise HTTPException(400, "the client has left") from None
        served, results = answer.served, []
        for query, ranked in zip(texts, answer.lists, strict=True):
            name = uuid.uuid4().hex
            results.append({"id": name, "model": served.label, "hits": hits_json(ranked, answer.texts)})
            if log:
                log.searched(name, query, list(ranked.documents), served.label)
        return results

    @app.get("/search")
    async def search(request: Request, q: str = "", k: int = 10) -> dict[str, Any]:
        for name in sorted(request.query_params.keys() - {"q", "k"}):
            raise HTTPException(422, f"{limits.printable_text(name)}: found an unknown key, expected q and k (GET /search)")
        if not 1 <= k <= limits.MOST_K:
            raise HTTPException(400, f"k: found {k}, expected 1 to {limits.MOST_K}")
        return (await answer(request, [q], k))[0]

    @app.post("/search")
    async def search_many(request: Request) -> dict[str, Any]:
        body = await limits.body(request, limits.Search)
        if (body.query is None) == (body.queries is None):
            raise HTTPException(422, "expected either query or queries")
        if body.query is not None:
            return (await answer(request, [body.query], body.k))[0]
        return {"results": await answer(request, body.queries or [], body.k)}

    @app.post("/click")
    async def click(request: Request) -> dict[str, str]:
        body = await limits.body(request, limits.Click)
        if log is None:
            raise HTTPException(404, "queries are not logged; start the server with --log-queries")
        log.clicked(body.query_id, body.doc, body.position)
        return {"status": "ok"}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        served = current.served
        state = {"status": "ok", "model": served.label, "since": current.since, "documents": served.count}
        return state | {"problem": current.problem, "clicks": log is not None, "most": limits.MOST_K}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(
            measures.text(current.served.label, problem=bool(current.problem)), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.get("/", response_class=HTMLResponse)
    async def index() -> str:
        return page


def hits_json(ranked: Ranked, texts: Mapping[str, tuple[str, str]] | None) -> list[dict[str, Any]]:
    """A list as JSON: rank, id, and score, with title and text if the server has them."""
    hits = []
    for rank, (doc, score) in enumerate(zip(ranked.documents, ranked.scores, strict=True), 1):
        hit: dict[str, Any] = {"rank": rank, "id": doc, "score": float(score)}
        if texts is not None:
            hit["title"], hit["text"] = texts[doc]
        hits.append(hit)
    return hits


def refusal(status: int, reason: str) -> JSONResponse:
    """A refusal in the form of FastAPI's own."""
    return JSONResponse({"detail": reason}, status_code=status)
