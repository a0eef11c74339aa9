"""The Prefect flow: one task run per stage, named after it; independent branches run at the same time.

Import after `flows.pipeline.server.set_environment`. Only names pass between task runs; what a stage computes passes through DVC.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.measuring import environments, timing
from flows.parameters.sources import watch
from flows.pipeline import splits
from flows.pipeline.plan import Plan
from flows.pipeline.stage import LOGS, Slots, devices_needed, find_devices, ray_environment, run_stage, spares_gpus
from flows.process.display import Display, Outcome, markdown_table
from flows.process.processes import Processes, Stopped, stopping_on_signals
from flows.repository.graph import Stage
from flows.results import generations, metrics
from flows.storage.frozen import COPIES, GRAPH
from flows.storage.outside import KINDS
from flows.storage.remote import WARNING
from tasks.core.errors import DiskError, Problem, UserError, disk_fault, printable
from tasks.core.files import write_json
from tasks.core.stage.code import SNAPSHOT
from tasks.core.stage.entry import SOURCES

ERROR = "retemper: "  # prefix of a stage's error
WATCHED = Path(".retemper/sources")  # for each running stage that reads from outside the project: what it may read


def execute(
    plan: Plan,
    processes: Processes,
    display: Display,
    *,
    clock: timing.Clock,
    python: Mapping[str, str] = MappingProxyType({}),
    gate: Callable[[], None] | None = None,
) -> dict[str, Outcome]:
    """Run the plan as a Prefect flow run; return each stage's outcome, by name. `python`: the environment of a `PreparedPython`.

    With a `gate`, `prepare` and the stages that it needs run first, then the gate. If the gate fails, no other stage begins.
    """
    outcomes: dict[str, Outcome] = {}
    stages = plan.graph.stages
    ungated = plan.graph.upstream_of([splits.STAGE]).stages if gate else stages
    crew = Crew(plan, processes, display, clock, Devices(stages), python, gate)

    @task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{name}")
    def bring_up_to_date(name: str) -> State[None]:
        outcome = crew.bring_up_to_date(name, get_run_logger().info)
        if outcome is None:
            return Failed(message="stopped")
        outcomes[name] = outcome
        if outcome.state == "Failed":
            return Failed(message=outcome.problem.message if outcome.problem else "")
        return Completed(name="Cached") if outcome.state == "Cached" else Completed(message=f"{outcome.seconds:.1f} s")

    @flow(
        name="retemper",
        task_runner=cast(
            TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=len(stages) + 1)
        ),  # a waiting task run holds a thread
        persist_result=False,
        validate_parameters=False,
    )
    def retemper() -> State[None]:
        with stopping_on_signals(processes, display.farewell):  # in place of Prefect's own SIGTERM handler
            futures: dict[str, PrefectFuture[Any]] = {}
            for name in sorted(stages, key=lambda name: name not in ungated):
                awaited = set(stages[name].upstream)
                if name not in ungated and awaited <= ungated.keys():  # others wait for one of these
                    awaited.add(splits.STAGE)
                upstream = [futures[other] for other in sorted(awaited)]
                futures[name] = bring_up_to_date.submit(name, return_state=False, wait_for=upstream)
            for future in futures.values():
                future.wait()
            _metrics_artifact()
        failed = [name for name, outcome in outcomes.items() if outcome.state == "Failed"]
        return Failed(message=f"failed: {', '.join(failed)}") if failed else Completed()

    retemper(return_state=True)
    return outcomes


class Devices:
    """The devices that stages compute on. Each stage takes as many as it needs, by its kind of slot, and waits while others hold them."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        self._stages = stages
        kinds = {stage.slot for stage in stages.values() if stage.slot}
        devices = find_devices() if kinds else []
        self._slots, self._gangs = {kind: Slots(devices) for kind in kinds}, Slots([""])
        self._needed = {workers: devices_needed(devices, workers) for workers in {stage.workers for stage in stages.values()}}

    def slot(self, name: str) -> str | None:
        """The kind of slot that a stage takes; None if it needs no device, or leaves the GPUs to others."""
        return None if spares_gpus(name) else self._stages[name].slot

    @contextmanager
    def take(self, name: str) -> Iterator[dict[str, str]]:
        """Wait for the devices of a stage; yields the environment that hides all others from it."""
        stage, slot = self._stages[name], self.slot(name)
        if slot is None:
            yield {}
            return
        count = self._needed[stage.workers]
        if not count:
            with ray_environment(self._gangs, stage.workers) as env:
                yield env
            return
        with self._slots[slot].take(count) as env, shared_slot(count):
            yield env


@dataclass(frozen=True)
class Crew:
    """Brings the stages of a plan up to date, one per call: the arguments of `execute`, and the devices."""

    plan: Plan
    processes: Processes
    display: Display
    clock: timing.Clock
    devices: Devices
    python: Mapping[str, str]
    gate: Callable[[], None] | None

    def bring_up_to_date(self, name: str, log: Callable[[str], None]) -> Outcome | None:
        """Bring a stage up to date; return its outcome, or None if the run was stopped. `log` receives the stage's lines."""
        if name not in self.plan.changed:
            self.display.ended(name, outcome := Outcome("Cached"))
            return outcome
        errors = list[str]()
        try:
            outcome = self._run(name, partial(self._handle_line, name, log, errors=errors))
        except Stopped:
            return None
        except Exception as error:
            outcome = _failure(name, error)
        if self.gate and name == splits.STAGE and outcome.state != "Failed":
            try:
                self.gate()
            except Exception as error:
                outcome = _failure(name, error, outcome.seconds)
        if self.processes.stopped:
            return None
        # printed when the run ends
        final_error = f"{ERROR}{outcome.problem.message}" if outcome.problem and self.display.runs_alone(name) else ""
        for line in errors:
            if line != final_error:
                self.display.output(name, line)
        self.display.ended(name, outcome)
        return outcome

    def _run(self, name: str, tell: Callable[[str], None]) -> Outcome:
        """Run a stage once its devices are free, and record its times and costs."""
        ready, stage = time.time(), self.plan.graph.stages[name]
        with self.devices.take(name) as env:
            self.display.began(name)
            self.clock.began(name)
            began = time.time()
            code_env = {SNAPSHOT: str(self.plan.code.absolute())} if self.plan.code else {}
            env = env | _source_environment(stage)
            env |= {**self.python, **code_env, GRAPH: str(COPIES.absolute()), **self.display.environment, **environments.begin(name)}
            outcome = run_stage(name, self.processes, tell, pull=self.plan.reached, env=env)
            costs = environments.cost(name)
            device = timing.device_name(env, self.devices.slot(name))
            state: timing.State = "Stopped" if self.processes.stopped else outcome.state if outcome.state != "Skipped" else "Failed"
            span = timing.Span(name, ready, outcome.began or began, outcome.ended or time.time(), device, state)
            self.clock.ended(span, *((environments.read_environment(name), costs) if state == "Ran" else ()))
        return replace(outcome, work=costs.get("seconds"))

    def _handle_line(self, name: str, log: Callable[[str], None], line: str, *, errors: list[str]) -> None:
        """Pass a stage's line to its log and the display. An error goes to `errors` instead of the display, to be shown at the end."""
        if self.processes.stopped:  # what a stage prints from then on is only in its own log
            return
        if line.startswith("\r"):
            self.display.progress(name, line[1:])
            return
        log(line)
        if line.startswith(ERROR) and not line.startswith(WARNING):  # a stage's last line
            errors.append(line)
        else:
            self.display.output(name, line)


def _failure(name: str, error: Exception, seconds: float = 0.0) -> Outcome:
    """The outcome of a stage that an error outside its own process ended. Prefect would keep the error to itself.

    A traceback goes to the stage's log if the user cannot fix the error: it is Prefect's, or a bug of ours.
    """
    if isinstance(error, UserError):
        problem = error.problem
    elif fault := disk_fault(error):
        problem = DiskError(f"{name}: {fault}").problem
    elif isinstance(error, OSError):
        problem = Problem("stage", f"{name}: {error}", 1)
    else:
        log = LOGS / f"{name}.log"
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as handle:
                handle.write(printable("".join(traceback.format_exception(error))))
        message = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        problem = Problem("stage", f"{name}: {message}; its log: {log}", 1, where=name)
    return Outcome("Failed", seconds, problem.status, problem)


def _source_environment(stage: Stage) -> dict[str, str]:
    """Environment variables that name the stage's record of outside files: those it may read, as DVC knows them (`watch`)."""
    if not stage.sources:
        return {}
    path = WATCHED / f"{stage.name}.json"
    record, kinds = watch(stage.sources)
    write_json(path, record)
    return {SOURCES: str(path.absolute()), KINDS: ",".join(kinds)}


def shared_slot(count: int) -> AbstractContextManager[None]:
    """Hold `count` slots of the global concurrency limit that RETEMPER_DEVICE_LIMIT names, for runs that share this machine's devices.

    `strict`: a limit that the server lacks is an error; otherwise Prefect would let everyone through. If the server forgets the slot
    meanwhile, the stage goes on.
    """
    limit = os.environ.get("RETEMPER_DEVICE_LIMIT")
    return concurrency(limit, occupy=count, strict=True, raise_on_lease_renewal_failure=False) if limit else nullcontext()


def _metrics_artifact() -> None:
    header, rows = metrics.rows(generations.current_metrics(metrics.read_metrics())[0])
    if rows:
        create_markdown_artifact(markdown_table(header, rows), key="metrics", description="metrics of every model, by split")
