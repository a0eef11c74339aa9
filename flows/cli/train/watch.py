"""`retemper watch`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def watch(
    *,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 0,
    text: Annotated[bool, typer.Option("--text", help="Print the current state and exit.")] = False,
    as_json: Json = False,
) -> int:
    """Follow a run on a local page: progress, curves, results so far; also retrainings and sweeps."""
    from flows.watching.watch import show

    return show(Path.cwd(), port=port, text=text, as_json=as_json)
