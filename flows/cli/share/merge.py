"""`retemper merge`."""

from flows.cli.command import ProjectCommand, group

app = group()


class MergeCommand(ProjectCommand):
    """Works where git has left conflicts."""

    merging = True


@app.command(cls=MergeCommand)
def merge() -> int:
    """Resolve git's conflicts in params.yaml and dvc.lock by keeping both sides' changes."""
    from flows.process import locks
    from flows.repository.merge import merge
    from flows.storage.cache import cache_folder

    with locks.hold_run_lock():
        print("\n".join(merge(cache_folder())))
    return 0
