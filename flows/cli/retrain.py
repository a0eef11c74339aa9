"""`retemper retrain`, and `retemper serve`, which does it on a schedule."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from tasks.core.stage.errors import UserError

app = group()


@app.command(cls=ProjectCommand)
def retrain(
    context: typer.Context,
    follow: Annotated[str, typer.Option(metavar="REV", help="Branch or commit whose parameters and code are run.")] = "HEAD",
) -> int:
    """Retrain once, now: new data, pipeline, comparison, champion; in a worktree of its own."""
    from flows.pipeline.plan import check_parameters
    from flows.retraining import retrain

    ended = retrain.retrain(Path.cwd(), follow, context.obj or check_parameters)
    return 1 if ended.result == "failed" else 0


@app.command(cls=ProjectCommand)
def serve(
    *,
    cron: Annotated[str | None, typer.Option(metavar="EXPR", help='Cron expression, such as "0 3 * * *".')] = None,
    interval: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Seconds between two runs, counted from 2024-01-01 00:00 UTC.")
    ] = None,
    follow: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch or commit that each run follows (default: the branch checked out now).")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone of the cron expression, such as Europe/Berlin (default: this machine's).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment (default: FOLDER-DIGEST@HOST).")] = None,
    pool: Annotated[str | None, typer.Option(help="Deploy to this work pool of the server at PREFECT_API_URL, and return.")] = None,
) -> int:
    """Retrain on a schedule: --cron or --interval."""
    from flows.scheduling.schedule import serve

    if (cron is None) == (interval is None):
        raise UserError("serve: expected one of --cron EXPR and --interval SECONDS; see retemper serve --help")
    return serve(cron, interval, name, timezone, follow, pool)
