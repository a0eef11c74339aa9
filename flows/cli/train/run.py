"""`retemper run`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Assignments, ProjectCommand, group
from tasks.core.errors import UserError

app = group()


@app.command(cls=ProjectCommand)
def run(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STAGE", help="Run only up to these stages of dvc.yaml (train@star, or train for all rounds); default: report."
        ),
    ] = None,
    *,
    assignments: Assignments = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write the sections of docs/recipes/NAME.yaml into params.yaml, permanently, before --set; none: restore the former.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Name the stages that may run, with time, memory, and disk space by recorded runs; change nothing. A "
            "new encoder is downloaded.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON, with the reason why each stage runs.")] = False,
    ignore_disk: Annotated[bool, typer.Option("--ignore-disk", help="Run even if the estimated new files do not fit on the disk.")] = False,
) -> int:
    """Bring the report up to date: only what changed runs. Then measure every system on the data sets of extra, if there are any."""
    from flows.evaluating import extra
    from flows.exporting.export import export_run
    from flows.exporting.settings import read_export
    from flows.parameters.recipes import apply_edits
    from flows.pipeline import run
    from flows.pipeline.plan import check_parameters
    from flows.process.display import Display
    from flows.process.problems import print_problems
    from flows.repository.worktree import SECOND
    from tasks.core.stage.frozen import freeze

    if as_json and not dry_run:
        raise UserError("run: found --json without --dry-run, expected both or neither")
    check, is_main_tree, status = context.obj or check_parameters, SECOND not in os.environ, 0

    undoing: list[Callable[[], None]] = []

    def edit_and_check() -> None:
        with apply_edits(assignments or [], recipe, lasting=True) as undo:
            check()
            if is_main_tree:
                read_export()
            if is_main_tree and not targets:
                extra.check()
        undoing.append(undo)

    def undo_edits() -> None:
        for undo in undoing:
            undo()
            freeze()

    if dry_run:
        plan = run.dry_run(targets or [], check, apply_edits(assignments or [], recipe, lasting=False))
        if as_json:
            estimates = [
                {"seconds": cost.seconds, "peak_mib": cost.peak_mib, "bytes": cost.bytes, "from": cost.since} for cost in plan.costs
            ]
            rows = zip(plan.changed_stages(), estimates, strict=True)
            print(json.dumps([{"stage": name, "why": why, "reads": reads, "estimate": estimate} for (name, why, reads), estimate in rows]))
            return 0
        print("\n".join(plan.lines()))
        return 0
    try:
        run.run(targets or [], edit_and_check, edits=assignments or [], ignore_disk=ignore_disk, undo=undo_edits)
    except run.StagesFailed as failed:
        print_problems(failed.problems)
        status = failed.status
    if is_main_tree and not status and (sent := export_run(Path.cwd(), read_export(), Display().warn)):
        print(f"exported to {', '.join(sent)}")
    if is_main_tree and extra.is_configured():
        return max(status, extra.run(measure=not (targets or status)))
    return status
