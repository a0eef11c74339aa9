"""`retemper browse`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from flows.cli.train.compare import Split

app = group()


@app.command(cls=ProjectCommand)
def browse(
    systems: Annotated[
        list[str] | None, typer.Argument(metavar="[A] [B]", help="Two systems; default: the best on dev, and bm25.", show_default=False)
    ] = None,
    *,
    split: Annotated[Split, typer.Option(help="The queries to step through; test is for the final figure.")] = Split.DEV,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 0,
    batch: Annotated[
        Path,
        typer.Option(metavar="FOLDER", file_okay=False, help="Where judgments are saved, as a batch for the inbox of `retemper retrain`."),
    ] = Path(".retemper/judged"),
) -> int:
    """Compare two systems side by side on a local page, step through the queries that one loses, and judge what they find."""
    from flows.results.browse import browse
    from tasks.core.errors import UserError

    names = systems or []
    if len(names) > 2 or len(set(names)) < len(names):
        raise UserError(f"browse {' '.join(names)}: expected two different systems at most")
    first, second = (*names, None, None)[:2]
    return browse(first, second, split=split.value, port=port, batch=batch)
