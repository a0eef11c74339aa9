"""`retemper retrain`, and `retemper schedule`, which does it on a schedule."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from tasks.core.errors import UserError

app = group()


@app.command(cls=ProjectCommand)
def retrain(
    context: typer.Context,
    follow: Annotated[str, typer.Option(metavar="REV", help="Branch or commit whose parameters and code are used.")] = "HEAD",
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check new data, say what would be retrained and which stages may run; train nothing.")
    ] = False,
) -> int:
    """Retrain once, now: new data, pipeline, comparison, champion; in a worktree of its own."""
    from flows.champions import tree
    from flows.pipeline.plan import check_parameters
    from flows.process.display import Display
    from flows.repository.tags import refuse_other_projects
    from flows.retraining import outlook, retrain

    tree.resolve_followed(Path.cwd(), follow)
    refuse_other_projects(Path.cwd())
    display, changed = Display(), ", ".join(tree.uncommitted(Path.cwd()) if follow == "HEAD" else ())
    if changed:
        display.warn(f"{changed}: found uncommitted changes, which this retraining does not use; commit them")
    if dry_run:
        outlook.foresee(Path.cwd(), follow, context.obj or check_parameters)
        return 0
    outcome = retrain.retrain(Path.cwd(), follow, context.obj or check_parameters)
    if changed:  # the first warning has scrolled far up by now
        display.warn(f"{changed}: this retraining did not use the uncommitted changes")
    return 1 if outcome.result == "failed" else 0


Cron = Annotated[str | None, typer.Option(metavar="EXPR", help='Cron expression, such as "0 3 * * *".')]
Interval = Annotated[int | None, typer.Option(metavar="SECONDS", help="Seconds between two runs, counted from 2024-01-01 00:00 UTC.")]
Follow = Annotated[
    str | None, typer.Option(metavar="REV", help="Branch or commit that each run follows (default: the branch checked out now).")
]
Timezone = Annotated[
    str | None, typer.Option(metavar="ZONE", help="Time zone of the cron expression, such as Europe/Berlin (default: this machine's).")
]
Name = Annotated[str | None, typer.Option(help="Name of the deployment (default: FOLDER-DIGEST@HOST).")]
Pool = Annotated[str | None, typer.Option(help="Deploy to this work pool of the server at PREFECT_API_URL, and return.")]


@app.command(cls=ProjectCommand)
def schedule(
    *,
    cron: Cron = None,
    interval: Interval = None,
    follow: Follow = None,
    timezone: Timezone = None,
    name: Name = None,
    pool: Pool = None,
) -> int:
    """Retrain on a schedule: --cron or --interval."""
    from flows.scheduling.schedule import serve

    if (cron is None) == (interval is None):
        raise UserError("schedule: expected one of --cron EXPR and --interval SECONDS; see retemper schedule --help")
    return serve(cron, interval, name, timezone=timezone, follow=follow, pool=pool)
