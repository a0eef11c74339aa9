"""`retemper search`."""

from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def search(
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="The query, in one word or several.")],
    *,
    k: Annotated[int, typer.Option("-k", help="Number of hits to show.")] = 10,
    model: Annotated[
        str | None, typer.Option(help="A round, an entry of adore, or a fusion; default: the best on dev by report.metric.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Search the corpus with a trained model."""
    from flows.results.search import search

    return search(" ".join(text), k, model, as_json=as_json)
