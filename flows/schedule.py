"""Runs again and again: the pipeline as a Prefect deployment, served by this process until it is stopped."""

import warnings

from flows.server import set_environment, use_server
from tasks.core.errors import UserError


def serve(cron: str | None, interval: int | None) -> int:
    """Serve `flows.scheduled:scheduled` on a schedule; returns when it is stopped."""
    check(cron, interval)
    use_server(schedules=True)
    from flows.scheduled import scheduled

    print(f"serving {scheduled.name} {f'by cron {cron}' if cron else f'every {interval} s'}; Ctrl-C ends it", flush=True)
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'", RuntimeWarning)  # Prefect's, on SIGTERM
    scheduled.serve(name="retemper", cron=cron, interval=interval, limit=1, print_starting_message=False)
    return 0


def check(cron: str | None, interval: int | None) -> None:
    """UserError where a schedule is none."""
    if interval is not None and interval < 1:
        raise UserError(f"--interval {interval}: expected at least 1 second")
    if cron is None:
        return
    set_environment()
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        raise UserError(f'--cron "{cron}": expected a cron expression, such as "0 3 * * *" (every day at three)') from None
