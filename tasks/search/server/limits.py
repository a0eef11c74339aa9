"""Limits of requests: who may send them, and how large and how slow they may be."""

import asyncio
import hmac
import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from tasks.core.errors import printable

QUERY = 2000  # characters in a query
MOST_K = 100  # documents in an answer
MOST_QUERIES = 64  # in a request
SHOWN = 64  # characters of a wrong value that are shown
BODY = 256 * 1024  # bytes in a request's body
BODY_SECONDS = 10.0  # for a request's body to arrive
BATCH = 16  # queries searched together
QUEUE = 256  # queries that wait; more are refused

Body = TypeVar("Body", bound=BaseModel)


class Search(BaseModel):
    """The body of POST /search: one query, or several."""

    model_config = ConfigDict(extra="forbid")
    query: str | None = Field(None, max_length=QUERY)
    queries: list[str] | None = Field(None, min_length=1, max_length=MOST_QUERIES)
    k: int = Field(10, ge=1, le=MOST_K, strict=True)  # strict: true is not 1


class Click(BaseModel):
    """The body of POST /click: the search, the document that was opened, and its position in the list (from 1)."""

    model_config = ConfigDict(extra="forbid")
    query_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    doc: str = Field(min_length=1, max_length=QUERY)
    position: int = Field(ge=1, le=MOST_K, strict=True)


RANKS = f"a whole number from 1 to {MOST_K}"
EXPECTED = {
    "k": RANKS,
    "query": f"text of at most {QUERY:,} characters",
    "queries": f"a list of 1 to {MOST_QUERIES} texts",
    "query_id": "the id of an answer of /search",
    "doc": f"text of 1 to {QUERY:,} characters",
    "position": RANKS,
}
ENDPOINTS = tuple(f"{', '.join(form.model_fields)} ({path})" for path, form in (("/search", Search), ("/click", Click)))


def checked_query(query: str) -> str:
    """The query, if it can be searched. HTTPException 400 if it is empty or too long."""
    if not query.strip():
        raise HTTPException(400, "the query is empty; enter some words")
    if len(query) > QUERY:
        raise HTTPException(400, f"the query has {len(query):,} characters, expected at most {QUERY:,}")
    return query.encode(errors="replace").decode()  # a lone surrogate cannot be encoded


async def body(request: Request, form: type[Body]) -> Body:
    """The JSON body of a request.

    HTTPException 415 if its content type is not JSON, 413 if it is too large, 408 if it takes too long, 400 if the client leaves before it
    is complete, 422 if it is not valid.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "expected content-type: application/json")  # a page of another site cannot send this unasked
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > BODY:
                    raise HTTPException(413, f"the body has more than {BODY:,} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the client left before the body was complete") from None
    except TimeoutError:
        raise HTTPException(408, f"the body took more than {BODY_SECONDS:g} seconds", {"Connection": "close"}) from None
    try:
        return form.model_validate_json(bytes(content))
    except ValidationError as error:
        raise HTTPException(422, validation_message(error.errors()[0])) from None


def validation_message(fault: Any) -> str:
    """An error of pydantic in one line: what was found, and what is allowed. A parameter of the URL is named by its key alone."""
    place = [str(part) for part in fault["loc"] if part != "query" or len(fault["loc"]) == 1]
    name, expected = ".".join(place), EXPECTED.get(place[0] if place else "")
    if place[1:]:  # an item of a list
        expected = "text"
    match fault["type"]:
        case "json_invalid":
            return f"found no JSON ({fault['ctx']['error']}), expected an object"
        case "extra_forbidden":
            return f"{printable_text(name)}: found an unknown key, expected {' or '.join(ENDPOINTS)}"
        case "missing":
            return f"{name}: missing, expected {expected}"
    return f"{name}{': ' if name else ''}found {_describe(fault['input'])}, expected {expected or 'an object'}"


def _describe(value: object) -> str:
    """A wrong value, for an error. Long texts and lists are described by their length."""
    match value:
        case str() if len(value) > QUERY:
            return f"{len(value):,} characters"
        case list():
            return f"a list of {len(value):,}"
        case dict():
            return "an object"
    return printable_text(json.dumps(value, ensure_ascii=False))


def printable_text(text: str) -> str:
    """A client's text, cut, and without control characters."""
    return printable(text if len(text) <= SHOWN else f"{text[:SHOWN]} …")


def is_host(host: str, names: Sequence[str]) -> bool:
    """Whether a Host header, with or without a port, is one of `names`: a name, `*.example.org` for all names below it, or `*` for any."""
    host = re.sub(r":[0-9]*$", "", host).lower()
    return any(host == name.lower() or (name.startswith("*") and host.endswith(name[1:].lower())) for name in names)


def is_of_other_site(request: Request) -> bool:
    """Whether a browser says that a page of another site made it send a request. Programs say nothing."""
    return request.headers.get("sec-fetch-site") == "cross-site"


def is_authorized(request: Request, key: str) -> bool:
    """Whether a request is allowed: it has the key (Authorization: Bearer KEY, or X-API-Key: KEY), or `key` is empty.

    Keys are compared in constant time.
    """
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    client_key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return not key or hmac.compare_digest(client_key.encode("latin-1"), key.encode())  # the bytes that were sent
