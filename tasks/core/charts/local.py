"""A page that one person opens on the machine on which its server runs.

It listens on this machine only, and refuses requests that name another host or come from another page: so no other page in a browser can
read it, or write through it.
"""

import errno
import socket
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tasks.core.errors import UserError

HOST = "127.0.0.1"
SOURCES = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


def local_app(title: str) -> FastAPI:
    """An empty application that refuses such requests."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def same_origin(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        host = request.headers.get("host", "").rsplit(":", 1)[0]
        origin = request.headers.get("origin")
        if host not in (HOST, "localhost") or (origin is not None and origin.split("://")[-1] != request.headers.get("host")):
            return JSONResponse({"detail": "this page answers only to itself"}, status_code=403)
        response = await answer(request)
        response.headers["Content-Security-Policy"] = SOURCES
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return app


def serve_local(app: FastAPI, port: int, note: str) -> None:
    """Print the address and `note`, and serve until the process is stopped. UserError if `port` cannot be had; 0 means any free one."""
    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the same port again, right after the last server
        try:
            listener.bind((HOST, port))
        except PermissionError:
            raise UserError(f"--port {port}: no permission, expected 1024 or above") from None
        except OSError as error:
            fault = "is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise UserError(f"--port {port}: {fault}, expected a free one; choose another, or 0") from None
        listener.listen()  # a client that opens the address at once waits, and is not refused
        print(f"http://{HOST}:{listener.getsockname()[1]}/  (Ctrl+C stops it; {note})", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
