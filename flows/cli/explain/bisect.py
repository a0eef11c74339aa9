"""`retemper bisect`."""

from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def bisect(
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model to examine (default: the champion's, or the one that it was trained from)."),
    ] = None,
    good: Annotated[
        str | None,
        typer.Option(metavar="BATCH", help="The last batch known to be good (default: the last that the champion was trained on)."),
    ] = None,
    bad: Annotated[str | None, typer.Option(metavar="BATCH", help="The last batch to search (default: the inbox's last).")] = None,
    follow: Annotated[str, typer.Option(metavar="REV", help="Branch or commit whose parameters and code are used.")] = "HEAD",
    measure: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the measure that the champion was chosen by.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many retrainings it takes, and about how long.")] = False,
    as_json: Json = False,
) -> int:
    """Find the batch of the inbox that made the model worse, by retraining on the first N batches, for several N."""
    from flows.explaining.bisect import bisect

    return bisect(model=model, good=good, bad=bad, follow=follow, measure=measure, dry_run=dry_run, as_json=as_json)
