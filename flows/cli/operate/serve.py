"""`retemper serve`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from flows.cli.command import group
from flows.cli.operate.retrain import Follow, Name, Pool, Timezone

app = group()
MOVED = "Moved"  # panel of options that have moved to schedule


class LogQueries(StrEnum):
    """How a query is written to the log."""

    HASHED = "hashed"
    PLAIN = "plain"


@app.command(cls=TyperCommand)
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; any other than loopback lets other machines search.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any that is free.")] = 8080,
    model: Annotated[str | None, typer.Option(help="Serve this model of the working tree instead of the champion.")] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Serve a folder of `retemper champion export`; needs no project.")
    ] = None,
    log_queries: Annotated[LogQueries | None, typer.Option(help="Log queries and clicks: as keyed hashes, or as typed.")] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for logged queries and clicks, as JSON Lines; default: .retemper/queries.jsonl."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer requests for this host name, such as a proxy sends. May be repeated."),
    ] = None,
    fetch: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How often to ask the git remote for new champions; 0: never.")
    ] = 0,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Deprecated: use retemper schedule --cron.", rich_help_panel=MOVED)
    ] = None,
    interval: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Deprecated: use retemper schedule --interval.", rich_help_panel=MOVED)
    ] = None,
    follow: Follow = None,
    timezone: Timezone = None,
    name: Name = None,
    pool: Pool = None,
) -> int:
    """Answer queries over HTTP with the champion, and follow its promotions and rollbacks."""
    from flows.repository.project import project_folder
    from tasks.core.errors import UserError

    if cron is not None or interval is not None:
        from flows.cli.operate.retrain import schedule

        print(
            "retemper: serve --cron and --interval are deprecated and will be removed in the next version; use retemper schedule",
            file=sys.stderr,
            flush=True,
        )
        project_folder()
        return schedule(cron=cron, interval=interval, follow=follow, timezone=timezone, name=name, pool=pool)
    schedule_options = {"follow": follow, "timezone": timezone, "name": name, "pool": pool}
    if misplaced := [f"--{key}" for key, value in schedule_options.items() if value]:
        raise UserError(f"serve: found {', '.join(misplaced)}, expected only with retemper schedule; remove it")
    if model and export:
        raise UserError("serve: found --model and --export, expected one of them")
    if log and not log_queries:
        raise UserError("serve: found --log without --log-queries, expected both; add --log-queries hashed or plain")
    if fetch and (model or export):
        raise UserError("serve: found --fetch, expected it only where the champion is served; remove it")
    if not export:
        project_folder()
    from flows.serving.serve import LOG, Settings
    from flows.serving.serve import serve as run

    return run(Settings(host, port, model, export, log_queries, log or LOG, tuple(allow_host or ()), fetch))
