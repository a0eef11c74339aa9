"""`retemper why`."""

from enum import StrEnum
from typing import Annotated

import typer

from flows.cli.command import Json, ProjectCommand, group

app = group()


class Split(StrEnum):
    """Factors that can be taken apart."""

    DATA = "data"
    PARAMETERS = "parameters"


@app.command(cls=ProjectCommand)
def why(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="champion/N, REVISION:MODEL, or REVISION (its best model on dev other than BM25).")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same forms; all models are measured on its dev.")],
    *,
    split: Annotated[
        list[Split] | None,
        typer.Option(
            help="Split this factor further: data by batches of the inbox, parameters by sections of params.yaml. May be repeated."
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=1,
            help="Train each configuration K times, each with a new seed; the interval is over them. 1: once, with the original seed; "
            "no interval.",
        ),
    ] = 3,
    measure: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the measure that NEW was chosen by.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many runs it takes, and about how long.")] = False,
    as_json: Json = False,
) -> int:
    """Why a model changed: how much of its difference on dev is due to data, parameters, code, and seed, by counterfactual trainings."""
    from flows.explaining.why import why

    parts = [part.value for part in split or ()]
    return why(old, new, split=parts, seeds=seeds, measure=measure, dry_run=dry_run, as_json=as_json)
