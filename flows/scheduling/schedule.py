"""Retrain on a schedule: a Prefect deployment, its runner and, if no server is configured, a server that keeps its history.

`retemper schedule` watches two processes that end with it: the server (ours, unless PREFECT_API_URL is set) and the runner, which starts
each scheduled run in its own process. If either dies, it is restarted; the schedule, the deployment, and the history are in the server's
database.
"""

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from flows.champions import tree
from flows.pipeline.server import Server, ServerUnavailable, is_configured, set_environment
from flows.process import locks
from flows.process.processes import Processes, environment, handling
from flows.retraining import notify
from flows.retraining.settings import read_retraining
from flows.scheduling.deployment import FLOW, LOCK, default_name, deploy, folder_tag, module_path, refuse_others
from flows.scheduling.times import Schedule, check, current_branch, local_timezone, prefect_schedules
from tasks.core.errors import UserError
from tasks.core.plurals import counted

STOP_SECONDS = 1.8  # from the signal to the exit, at most
AGAIN_SECONDS = 5.0  # between two starts of a runner that ended unexpectedly; twice as long after each failure of the server
SHORT_SECONDS = 60.0  # a runner that lives as long has started well
MOST_FAILURES = 5  # in a row
LOOK_SECONDS = 60.0  # between two looks for a retraining that was killed


class Stop(BaseException):
    """A signal has asked us to end."""


def serve(
    cron: str | None,
    interval: int | None,
    name: str | None = None,
    *,
    timezone: str | None = None,
    follow: str | None = None,
    pool: str | None = None,
) -> int:
    """Run retrainings on a schedule until a signal ends it; with `pool`, only set up its workers to do so. Return the exit status."""
    follow = current_branch(Path.cwd()) if follow is None else follow
    schedule = Schedule(name or default_name(), cron, interval, timezone or (local_timezone() if cron else "UTC"), follow)
    check(schedule)
    tree.resolve_followed(Path.cwd(), follow)
    read_retraining()
    notify.check_webhook()
    if pool:
        return deploy(schedule, pool)
    processes = Processes()
    with locks.hold_run_lock(LOCK), _stopping() as stopping:
        server = None
        try:
            server = _start_server()
            refuse_others(schedule.name, folder_tag())
            _watch(schedule, processes, server)
        except Stop:
            pass
        finally:
            processes.stop()
            if stopping.is_set():
                _last_words(schedule, server)
            if server:
                server.close()
            if stopping.is_set():
                print("retemper: scheduling has ended; the schedule continues when it is started again", flush=True)
                _exit(0)
    return 1


def _start_server() -> Server | None:
    """Get Prefect's API ready; return our server, or None if one is configured. Raises UserError if that is unavailable."""
    set_environment()
    server = None
    if not is_configured():
        server = Server(schedules=True, lasting=True)
        os.environ["PREFECT_API_URL"] = server.url
    import prefect.main  # noqa: F401 - two seconds, while the server starts
    from prefect.client.orchestration import get_client
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()  # `check` has imported Prefect, which read its settings then
    if server:
        server.wait()
        print(f"Prefect's page: {server.url.removesuffix('/api')}", flush=True)
    else:
        with get_client(sync_client=True) as client:
            problem = client.api_healthcheck()
        if problem:
            raise ServerUnavailable(problem)
    notify.check_block()
    return server


def _watch(schedule: Schedule, processes: Processes, server: Server | None) -> None:
    """Keep the runner and our server alive, and report runs that were killed, as the next one may be a week away.

    Returns only if one keeps ending, or Prefect's API is unavailable for minutes: a failure.
    """
    when = f"by cron {schedule.cron} ({schedule.timezone})" if schedule.cron is not None else f"every {schedule.interval} s"
    print(f"retraining {when} as {FLOW}/{schedule.name}, following {schedule.follow}; Ctrl-C ends it", flush=True)
    runner: threading.Thread | None = None
    failures, started, pause, looked = 0, 0.0, 0.0, -LOOK_SECONDS
    while failures < MOST_FAILURES:
        time.sleep(pause)
        pause = 0.0
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            with suppress(Exception):  # the next retraining does it, or says why it cannot
                from flows.retraining.retrain import report_killed

                report_killed(Path.cwd())
        try:
            if server and not server.is_alive():
                _warn("Prefect's server ended unexpectedly; restarting it")
                server.start()
                server.wait()
            if runner is None:
                _tidy(schedule)
                runner, started = threading.Thread(target=_run_runner, args=(schedule, processes), daemon=True), time.monotonic()
                runner.start()
        except Exception as error:  # from our server, or from Prefect's API, which has many
            failures, pause = failures + 1, AGAIN_SECONDS * 2**failures
            _warn(str(error) if isinstance(error, UserError) else f"Prefect: {type(error).__name__}: {error}")
            continue
        runner.join(1.0)
        has_ended = not runner.is_alive()
        failures = 0 if time.monotonic() - started >= SHORT_SECONDS else failures + has_ended
        if has_ended:
            runner, pause = None, AGAIN_SECONDS
            _warn("the runner ended unexpectedly; restarting it")
    print("retemper: the runner or Prefect's server keeps ending; the lines above say why", file=sys.stderr, flush=True)


def _tidy(schedule: Schedule) -> None:
    """Correct the records of dead runs, and print how many there were. People get a notice of missed ones."""
    from flows.scheduling.missed import tidy

    crashed, missed = tidy(f"{FLOW}/{schedule.name}", "its process was killed; the champion is unchanged")
    if crashed or missed:
        print(
            f"{crashed} killed runs are marked Crashed; {missed} scheduled runs were missed (retemper retrain makes up for them)",
            flush=True,
        )
    if missed:
        text = f"{Path.cwd().name}: {counted(missed, 'runs')} of the schedule did not start; retemper retrain makes up for them"
        notify.notify("missed", text, _warn)


def _warn(line: str) -> None:
    print(f"retemper: warning: {line}", file=sys.stderr, flush=True)


def _run_runner(schedule: Schedule, processes: Processes) -> None:
    with suppress(Exception):
        processes.run(
            [sys.executable, "-m", "flows.scheduling.schedule", json.dumps(asdict(schedule))],
            lambda line: print(line, flush=True),
            environment(),
        )


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Raise Stop at the first signal that asks us to end, and exit after STOP_SECONDS in any case."""
    stopping = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        if stopping.is_set():
            return
        stopping.set()
        timer = threading.Timer(STOP_SECONDS, _exit, (0,))
        timer.daemon = True
        timer.start()
        raise Stop

    with handling(stop):
        yield stopping


def _exit(status: int) -> None:
    """Exit at once: Prefect's exit functions wait up to a minute for a server that we have just ended. Processes tied to us end too."""
    with suppress(ValueError, OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _last_words(schedule: Schedule, server: Server | None) -> None:
    """Mark the run that we stopped as stopped; if time runs out, the next `schedule` does it."""
    if "prefect.main" not in sys.modules or (server and not server.is_alive()):
        return

    def tell() -> None:
        with suppress(Exception):
            from flows.scheduling.missed import tidy

            time.sleep(0.6)  # the run's own end comes first
            tidy(f"{FLOW}/{schedule.name}", "stopped with retemper schedule; the champion is unchanged", missed=False)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    thread.join(STOP_SECONDS - 0.4)


def main(arguments: list[str]) -> None:
    """Be the runner: serve the deployment until killed."""
    schedule = Schedule(**json.loads(arguments[0]))
    set_environment()
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy

    from flows.scheduling.flow import scheduled

    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'", RuntimeWarning)  # Prefect's, on SIGTERM
    scheduled.serve(
        name=schedule.name,
        schedules=prefect_schedules(schedule),
        parameters={"follow": schedule.follow},
        tags=[folder_tag()],
        global_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        pause_on_shutdown=False,  # the schedule outlives us
        print_starting_message=False,
        entrypoint_type=module_path(),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
