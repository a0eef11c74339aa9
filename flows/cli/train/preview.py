"""`retemper preview`."""

from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def preview(
    *,
    documents: Annotated[
        int, typer.Option(metavar="N", help="Documents to sample, with one dev query per 20 and one training query per 2 of them.")
    ] = 2000,
    round_: Annotated[
        str | None, typer.Option("--round", metavar="NAME", help="The round to train; default: the first that needs no earlier one.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for this preview alone, as in retemper run.")
    ] = None,
) -> int:
    """BM25, the encoder as it is, and a short training on a sample of the data: a first look, within minutes."""
    from flows.previewing.preview import preview

    return preview(documents, name=round_, sets=assignments or [])
