"""`retemper verify` and `retemper gc`: the cache and the remote, checked and cleaned."""

from typing import Annotated

import typer

from flows.cli.command import ProjectCommand, group

app = group()


@app.command(cls=ProjectCommand)
def verify(remote: Annotated[str | None, typer.Option(metavar="NAME", help="Check this remote instead.")] = None) -> int:
    """Read the whole cache and remove what is corrupt; the next run fetches or recomputes it."""
    from flows.team.verify import verify_cache, verify_remote

    return verify_remote(remote.lower()) if remote else verify_cache()


@app.command(cls=ProjectCommand)
def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be removed, and remove nothing.")] = False,
    remote: Annotated[str | None, typer.Option(metavar="NAME", help="Clean this remote as well, after fetching every git remote.")] = None,
    days: Annotated[float, typer.Option(metavar="N", min=0, help="Keep what reached the remote in the last N days.")] = 7,
    unsent: Annotated[bool, typer.Option("--unsent", help="Also remove results that have not been pushed to the remote.")] = False,
) -> int:
    """Remove from the cache what no branch, tag, experiment or working tree needs.

    From a remote, it removes all that this repository does not need: do not use it where other repositories push there, too.
    """
    from flows.team.gc import collect

    collect(dry_run, remote.lower() if remote is not None else None, print, days=days, keep_unsent=not unsent)
    return 0
