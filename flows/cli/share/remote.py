"""`retemper remote` and `retemper cache`: what a team shares."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group

app = group(name="remote", help="The team's remote: results that one member computes are reused by all.")
cache = group(name="cache", help="One cache folder for all users of a machine.")


@app.command(cls=ProjectCommand)
def add(
    name: str,
    url: str,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="A DVC remote option (endpointurl, access_key_id ...); secrets stay out of git; for the value -, you are asked.",
        ),
    ] = None,
) -> int:
    """Share through a folder, s3://BUCKET/PATH, ssh://HOST/PATH ..., after checking that it can be written and read."""
    from flows.team import remotes

    print(remotes.add(name, url, options or []))
    return 0


@app.command("list", cls=ProjectCommand)
def list_remotes() -> int:
    """The remotes of this project."""
    from flows.team import remotes

    known_remotes = remotes.remotes()
    if not known_remotes:
        print("no remotes; retemper remote add NAME URL adds one")
    for name, url, default in known_remotes:
        print(f"{name}  {url}{'  (used by runs)' if default else ''}")
    return 0


@app.command(cls=ProjectCommand)
def remove(name: str) -> int:
    """Remove a remote from this project; what it holds stays."""
    from flows.team import remotes

    remotes.remove(name)
    return 0


@cache.callback()
def _cache() -> None:
    pass  # otherwise typer would take `share` for the whole group


@cache.command(cls=ProjectCommand)
def share(folder: Annotated[Path, typer.Argument(file_okay=False)]) -> int:
    """Use FOLDER as the cache; the working tree links to it."""
    from flows.process import locks
    from flows.repository.lock import worktrees
    from flows.team import remotes

    with locks.hold_run_locks(worktrees()):  # worktrees of sweeps and retrainings use this cache, too
        print(remotes.share(folder))
    return 0
