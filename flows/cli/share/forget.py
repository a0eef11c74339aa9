"""`retemper forget`."""

import sys
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group
from tasks.core.errors import UserError

app = group()


@app.command(cls=ProjectCommand)
def forget(
    records: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOC|QUERY", help="Ids of documents or queries. None: remove those listed in forgotten.txt from this clone's caches."
        ),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> int:
    """Remove records from source, cache, and remotes for good, and name the models that saw them."""
    from flows.forgetting import forget
    from flows.intake.verdict import kept_beside, kept_verdicts

    if not (dry_run or yes or sys.stdin.isatty()):
        raise UserError("forget removes records permanently; check with --dry-run first, then confirm with --yes")
    return forget.forget(
        records or [],
        dry=dry_run,
        sure=lambda: yes or typer.confirm("Remove all of this for good?"),
        tell=print,
        kept_verdicts=kept_verdicts,
        kept_beside=kept_beside,
    )
