"""When retrainings run: a schedule as the user gives it, checked, and as Prefect takes it."""

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from flows.champions import tree
from flows.pipeline.server import set_environment
from flows.repository.git import GitFailed, git
from tasks.core.errors import UserError

BANNED = "/%&<>"  # characters that Prefect forbids in a name
LONGEST = 366 * 24 * 3600  # seconds of an interval


@dataclass(frozen=True)
class Schedule:
    """A schedule: the deployment's name, its times (`cron` or `interval`), and the commit that each run follows."""

    name: str
    cron: str | None
    interval: int | None
    timezone: str
    follow: str


def check(schedule: Schedule) -> None:
    """Raise UserError if a schedule is invalid."""
    if schedule.interval is not None and not 1 <= schedule.interval <= LONGEST:
        raise UserError(f"--interval {schedule.interval}: expected 1 to {LONGEST:,} seconds (a year)")
    if banned := [character for character in BANNED if character in schedule.name]:
        raise UserError(f"--name {schedule.name}: found {banned[0]}, expected a name without any of {' '.join(BANNED)}")
    set_environment()
    from prefect.client.schemas.schedules import CronSchedule

    cron = "* * * * *" if schedule.cron is None else schedule.cron
    try:
        CronSchedule(cron=cron, timezone=schedule.timezone)
        if len(cron.split()) > 5:  # fields for seconds and years, which standard cron lacks
            raise ValueError
        import_module("prefect._vendor.croniter").croniter(cron).get_next()  # raises if there is no such date: 31 February
    except ValueError as error:
        if "timezone" in str(error).lower():
            raise UserError(f"--timezone {schedule.timezone}: expected a name such as Europe/Berlin or UTC") from None
        raise UserError(f'--cron "{cron}": expected five cron fields that match a date, such as "0 3 * * *" (every day at three)') from None


def local_timezone() -> str:
    """The name of the machine's time zone, by TZ, the target of /etc/localtime, or /etc/timezone (Prefect's own default is UTC)."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if name and not name.startswith("/"):
        if name not in available_timezones():  # such as UTC0, which POSIX allows
            raise UserError(f"TZ={name}: found no time zone of that name, expected one such as Europe/Berlin; give --timezone")
        return name
    parts = Path(name or "/etc/localtime").resolve().parts
    if "zoneinfo" in parts:
        return "/".join(parts[parts.index("zoneinfo") + 1 :])
    with suppress(OSError):  # in a container, /etc/localtime is often a file
        return Path("/etc/timezone").read_text(encoding="utf-8").strip() or "UTC"
    return "UTC"


def current_branch(project: Path) -> str:
    """The branch that is checked out now, or the commit if HEAD is detached. Runs follow it, whatever is checked out later."""
    commit = tree.resolve(project, "HEAD")
    if commit is None:
        raise UserError(f"{project}: the repository has no commit; commit the project first")
    with suppress(GitFailed):
        return git("symbolic-ref", "--short", "HEAD", folder=project)
    return commit


def prefect_schedules(schedule: Schedule) -> list[Any]:
    from prefect.schedules import Cron, Interval

    if schedule.cron is not None:
        return [Cron(schedule.cron, schedule.timezone)]
    anchor = datetime(2024, 1, 1, tzinfo=UTC)  # without one, times are counted from each start
    return [Interval(timedelta(seconds=schedule.interval or 0), anchor_date=anchor)]
