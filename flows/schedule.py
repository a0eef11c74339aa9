"""Runs again and again: the pipeline as a Prefect deployment, served by this process until it is stopped."""

import warnings

from flows.server import use_server


def serve(cron: str | None, interval: int | None) -> int:
    """Serve `flows.scheduled:scheduled` on a schedule; returns when it is stopped."""
    use_server(schedules=True)
    from flows.scheduled import scheduled

    print(f"serving {scheduled.name} {f'by cron {cron}' if cron else f'every {interval} s'}; Ctrl-C ends it", flush=True)
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'", RuntimeWarning)  # Prefect's, on SIGTERM
    scheduled.serve(name="retemper", cron=cron, interval=interval, limit=1, print_starting_message=False)
    return 0
