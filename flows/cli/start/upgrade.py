"""`retemper upgrade`."""

from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group

app = group()
Files = list[str] | None


@app.command(cls=ProjectCommand)
def upgrade(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="URL or folder of a git repository of Retemper; default: the one in retemper.toml.")
    ] = "",
    *,
    to: Annotated[str, typer.Option(metavar="REV", help="Branch, tag, or commit there.")] = "HEAD",
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="REV", help="The version that the project's code came from, if neither retemper.toml nor git has it."
        ),
    ] = "",
    branch: Annotated[str, typer.Option(metavar="NAME", help="Commit to a new branch, and leave the current one unchanged.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is new and which stages run again, and change nothing.")] = False,
    ours: Annotated[Files, typer.Option(metavar="FILE", help="In a conflict, keep the project's FILE. May be repeated.")] = None,
    theirs: Annotated[Files, typer.Option(metavar="FILE", help="In a conflict, take the newer FILE. May be repeated.")] = None,
) -> int:
    """Bring a newer Retemper's code and parameters into this project, in one commit."""
    from flows.projects.upgrade import Wish, upgrade

    wish = Wish(source, to, since, branch, dry_run, tuple(ours or ()), tuple(theirs or ()))
    return upgrade(wish, print)
