"""`retemper sweep`, `experiments` and `reproduce`: runs beside the working tree, and their results."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.command import Json, ProjectCommand, TestFigures, group

app = group()


@app.command(cls=ProjectCommand)
def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="YAML: grid: {KEY: [VALUE, ...]} and/or points: {NAME: {KEY: VALUE, ...}}; keys as in --set; docs/recipes/sweeps.md",
        ),
    ],
    *,
    jobs: Annotated[int, typer.Option(metavar="N", help="Points to run at the same time.")] = 1,
    test: TestFigures = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting for every point of FILE, as in retemper run.")
    ] = None,
) -> int:
    """Run the points of a grid as DVC experiments, beside your working tree."""
    from flows.experiments.sweep import sweep

    return sweep(file, jobs, test, edits=assignments or [])


@app.command(cls=ProjectCommand)
def experiments(test: TestFigures = False, as_json: Json = False) -> int:
    """Parameters and metrics of this project's experiments."""
    from flows.experiments.store import show

    show(test, as_json)
    return 0


@app.command(cls=ProjectCommand)
def reproduce(
    rev: Annotated[str, typer.Argument(metavar="REV", help="A commit, branch, tag or experiment with a dvc.lock.")],
    *,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the clone, which is kept; default: a temporary one.")
    ] = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="Use an empty cache and no remote, so that every stage runs.")] = False,
    environment: Annotated[
        Literal["revision", "present"],
        typer.Option(help="Package versions: those in the revision's constraints.txt, or those installed here."),
    ] = "revision",
    tolerance: Annotated[
        float, typer.Option(min=0, metavar="X", help="How far apart measures, vectors, and lists may be if the hardware differs.")
    ] = 0.01,
) -> int:
    """Run a revision in a fresh clone and compare every digest with its dvc.lock."""
    from flows.reproducing.reproduce import How, reproduce

    return reproduce(rev, into, How(recompute, environment, tolerance))
