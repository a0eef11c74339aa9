"""`retemper lineage`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group, refuse_place
from tasks.core.errors import UserError

app = group()


@app.command(cls=ProjectCommand)
def lineage(
    artifact: Annotated[
        str, typer.Argument(metavar="ARTIFACT", help="A model (star), its metrics (data/metrics/star.json) or any artifact's path.")
    ],
    *,
    rev: Annotated[str | None, typer.Option(help="A commit, branch, tag or experiment; default: this working tree.")] = None,
    whole: Annotated[bool, typer.Option("--all", help="Also show every command, code file and digest.")] = False,
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page instead.")] = None,
) -> int:
    """What a model or a metric was made from: data, parameters, code, stages, commits."""
    from flows.team import lineage

    if whole + as_json + (html is not None) > 1:
        raise UserError("lineage: expected one of --all, --json and --html FILE; see retemper lineage --help")
    refuse_place("--html", html)
    lineage.show(artifact, rev, "json" if as_json else "text", page=html, full=whole)
    return 0
