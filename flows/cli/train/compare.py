"""`retemper compare`."""

from enum import StrEnum
from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group
from tasks.core.errors import UserError

app = group()


class Split(StrEnum):
    """What systems are compared on."""

    DEV = "dev"
    TEST = "test"


@app.command(cls=ProjectCommand)
def compare(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM",
            help="MODEL (of this working tree), champion/N, REVISION:MODEL, REVISION (its best model on dev; a commit, branch, tag, or "
            "experiment), or a TREC run file. The others are compared with the first.",
        ),
    ],
    *,
    split: Annotated[Split, typer.Option(help="Choose by dev; test is for the final figure.")] = Split.DEV,
    measure: Annotated[str | None, typer.Option(metavar="NAME", help="Default: report.metric.")] = None,
    queries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show the N queries that gain most and the N that lose most (default: 3).")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY_ID", help="Show only this query: what each system finds for it, and the ranks of its relevant documents."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare systems query by query: means, paired tests, and what differs in how they were made."""
    from flows.experiments.compare import compare
    from flows.experiments.one_query import show

    if len(systems) < 2:
        raise UserError(f"compare {systems[0]}: found one system, expected at least two")
    if query is not None:
        if queries is not None:
            raise UserError(
                f"compare --query {query} --queries {queries}: found both, expected one query or those that differ most; drop one"
            )
        show(systems, query, split=split.value, measure=measure, as_json=as_json)
        return 0
    compare(systems, split.value, measure, shown=3 if queries is None else queries, as_json=as_json)
    return 0
