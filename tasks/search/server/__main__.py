"""Answers queries over HTTP with an exported model, and follows its replacements."""

import os
import signal
import socket
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

import uvicorn

from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.search.server.app import Settings, create_app
from tasks.search.server.connections import Bounded, connection_limit
from tasks.search.server.log import Log
from tasks.search.server.measures import Measures
from tasks.search.server.served import Current

KEY = "RETEMPER_API_KEY"
GRACE_SECONDS = 10  # for requests in progress, after the signal that ends the server


def arguments() -> ArgumentParser:
    """The command line. The caller binds the socket, so that a port in use is noticed before anything is loaded."""
    known = parser(__doc__ or "", served="exported folder, or a link to one that may be changed")
    known.add_argument("--socket", type=int, required=True, help="number of the open, bound socket")
    known.add_argument("--host", action="append", default=[], help="name by which the server may be asked for; default: any")
    known.add_argument("--problem", type=Path, help="file in which whoever changes the link says why it does not, while it exists")
    known.add_argument("--log", type=Path, help="file to which queries and clicks are appended")
    known.add_argument("--log-queries", choices=("hashed", "plain"), help="how a query is written there; default: no log")
    return known


def main() -> None:
    given = arguments().parse_args()
    measures = Measures()
    log = None
    if given.log_queries:
        log = Log(given.log, given.log_queries, partial(_unlogged, measures))
    current = Current(given.served, measures.swapped, _say, problem=given.problem)
    app = create_app(current, measures, log, Settings(os.environ.get(KEY, ""), given.host or ("*",)))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        http=Bounded,
        limit_concurrency=connection_limit(),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after its shutdown
    with socket.socket(fileno=given.socket) as listener:
        host, port = listener.getsockname()[:2]
        _say(f"serving {current.served.label} at http://{f'[{host}]' if ':' in host else host}:{port}/")
        current.watch()
        uvicorn.Server(config).run([listener])
    current.stop()
    _say(f"stopped; {measures.summary()}")


def _say(line: str) -> None:
    print(f"retemper: {line}", flush=True)


def _unlogged(measures: Measures, error: OSError) -> None:
    if not measures.lost:
        print(f"retemper: warning: a line of the query log is lost ({error}); retemper_unlogged counts them", file=sys.stderr, flush=True)
    measures.unlogged()


if __name__ == "__main__":
    with stage():
        try:
            main()
        except OSError as error:
            if error.filename is None:
                raise
            raise UserError(f"{error.filename}: {error.strerror}") from None
