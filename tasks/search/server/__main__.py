"""Answers queries over HTTP with an exported model, and follows its replacements."""

import os
import signal
import socket
import sys
from argparse import ArgumentParser
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvicorn

from tasks.core.errors import UserError
from tasks.core.stage.entry import parser, stage
from tasks.search.server.app import Settings, create_app
from tasks.search.server.connections import Bounded, connection_limit
from tasks.search.server.log import Log
from tasks.search.server.measures import Measures
from tasks.search.server.served import Current

KEY = "RETEMPER_API_KEY"
GRACE_SECONDS = 10  # for requests in progress, after the signal that ends the server


def arguments() -> ArgumentParser:
    """The command line. The caller binds the socket, so that a port in use is noticed before anything is loaded."""
    command_line = parser(__doc__ or "", served="exported folder, or a link to one that may be changed")
    command_line.add_argument("--socket", type=int, required=True, help="number of the open, bound socket")
    command_line.add_argument("--host", action="append", default=[], help="host name that requests may use; default: any")
    command_line.add_argument("--problem", type=Path, help="file that exists while a newer model cannot be put into place, and says why")
    command_line.add_argument("--log", type=Path, help="file to which queries and clicks are appended")
    command_line.add_argument("--log-queries", choices=("hashed", "plain"), help="how queries are written to the log; default: no log")
    return command_line


def main() -> None:
    args = arguments().parse_args()
    measures = Measures()
    log = None
    if args.log_queries:
        log = Log(args.log, args.log_queries, partial(_unlogged, measures))
    current = Current(args.served, measures.swapped, _say, problem=args.problem)
    app = create_app(current, measures, log, Settings(os.environ.get(KEY, ""), args.host or ("*",)))
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
    with socket.socket(fileno=args.socket) as listener:
        host, port = listener.getsockname()[:2]
        _say(f"serving {current.served.label} at http://{f'[{host}]' if ':' in host else host}:{port}/")
        current.watch()
        uvicorn.Server(config).run([listener])
    current.stop()
    _say(f"stopped; {measures.summary()}")


def _say(line: str) -> None:
    with suppress(OSError):  # a full disk, or a reader that has left: queries are answered all the same
        print(f"retemper: {line}", flush=True)


def _unlogged(measures: Measures, error: OSError) -> None:
    measures.unlogged()
    if measures.lost == 1:
        with suppress(OSError):
            print(
                f"retemper: warning: a line of the query log was not written ({error}); retemper_unlogged_total counts such lines",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    with stage():
        try:
            main()
        except OSError as error:
            if error.filename is None:
                raise
            raise UserError(f"{error.filename}: {error.strerror}") from None
