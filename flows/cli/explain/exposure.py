"""`retemper exposure`."""

from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def exposure(
    records: Annotated[list[str], typer.Argument(metavar="DOC|QUERY", help="Ids of documents or queries, as in the source.")],
    *,
    rev: Annotated[
        str | None, typer.Option(help="A commit, branch, tag or experiment; default: this working tree and all champions.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Which trainings used a record, at which steps, and in which role."""
    from flows.team import exposure

    exposure.show(records, rev, as_json=as_json)
    return 0
