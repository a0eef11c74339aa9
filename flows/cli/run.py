"""`retemper run`."""

from collections.abc import Callable
from typing import Annotated

import typer

from flows.cli.command import Assignments, ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def run(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="STAGE", help="Stop at these stages of dvc.yaml (train@star, or train for all); default: report."),
    ] = None,
    *,
    assignments: Assignments = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Put the sections of docs/recipes/NAME.yaml into params.yaml permanently, before --set; none: restore the former ones.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name the stages that may run, and change nothing.")] = False,
) -> int:
    """Bring the report up to date: only what changed runs."""
    from flows.parameters.recipes import edited
    from flows.pipeline import run
    from flows.pipeline.plan import check_parameters
    from flows.process.problems import tell

    check = context.obj or check_parameters

    undoing: list[Callable[[], None]] = []

    def edit_and_check() -> None:
        with edited(assignments or [], recipe, lasting=True) as undo:
            check()
        undoing.append(undo)

    if dry_run:
        names = run.dry_run(targets or [], check, edited(assignments or [], recipe, lasting=False))
        print("\n".join([*names, f"{len(names)} stages may run (fewer, where outputs come out the same or are in the cache)"]))
        return 0
    try:
        run.run(targets or [], edit_and_check, edits=assignments or [], undo=lambda: undoing[0]())
    except run.StagesFailed as failed:
        tell(failed.problems)
        return failed.status
    return 0
