"""The pipeline as a retraining runs it: with Prefect's server, or without one that has become unavailable."""

import sys
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import TypeVar

from flows.champions.measurement import OF_SERVER
from flows.pipeline import run, server
from flows.pipeline.alone import WITH_DEV
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import Problems
from flows.process.processes import TYPED, Processes, environment, typed_command
from tasks.core.errors import Problem, UserError

WAIT_SECONDS = 600.0  # for a gc, which holds the worktree while it looks

T = TypeVar("T")


def run_pipeline(check: Callable[[], None], processes: Processes, display: Display, *, targets: Sequence[str] = ()) -> None:
    """Run the pipeline for `targets` (none: the report).

    If Prefect's server becomes unavailable meanwhile, a process that needs no server finishes the run.
    A server that restarted, or was unavailable for minutes, has forgotten the scheduled run's lease on the limit of its deployment; Prefect
    then raises its CancelledError in this thread.
    """
    with locks.wait_and_hold(locks.RUN_LOCK, seconds=WAIT_SECONDS):
        pass  # it is free now
    try:
        run.run(targets, check=check, nested=True, with_dev=True)
    except (Exception, CancelledError) as error:
        if isinstance(error, UserError | OSError | run.StagesFailed) and not isinstance(error, server.ServerUnavailable):
            raise
        if not server.is_configured():
            raise
        problem = str(error) if isinstance(error, server.ServerUnavailable) else f"Prefect ended the run ({type(error).__name__})"
        display.warn(f"{problem}; continuing without its server")
        env = environment(PREFECT_HOME=str(server.HOME.absolute()))
        for name in OF_SERVER:
            env.pop(name, None)
        reported = Problems(server.HOME.parent / "pipeline.problem.json")
        command = [sys.executable, "-m", "flows.pipeline.alone", WITH_DEV, *targets]
        try:
            status = retry_cancelled(lambda: processes.run(command, display.line, {**env, TYPED: typed_command(), **reported.environment}))
        finally:
            problems = reported.take()
        if status:
            raise run.StagesFailed(problems or [Problem("pipeline", f"the pipeline ended with status {status}", status)], status) from None


def retry_cancelled(work: Callable[[], T]) -> T:
    """Do `work`, and do it again if Prefect raises its CancelledError, which it does once per lease; finished pieces are kept."""
    try:
        return work()
    except CancelledError:
        return work()
