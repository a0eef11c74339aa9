"""The Prefect flow: one task run per stage, named after it; independent branches run at the same time.

Import after `flows.pipeline.server.set_environment`. Only names pass between task runs; what a stage computes passes through DVC.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
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

from flows.parameters.sources import watch
from flows.pipeline import splits
from flows.pipeline.plan import Plan
from flows.pipeline.stage import Slots, devices_needed, elsewhere, find_devices, run_stage, spares_gpus
from flows.process.display import Display, Outcome, markdown_table
from flows.process.processes import Processes, Stopped, stopping_on_signals
from flows.repository.graph import Stage
from flows.results import environments, generations, metrics, timing
from flows.storage.remote import WARNING
from tasks.core.stage.code import SNAPSHOT
from tasks.core.stage.entry import SOURCES
from tasks.core.stage.errors import DiskError, Problem, UserError, disk_fault
from tasks.core.stage.files import write_json

ERROR = "retemper: "  # prefix of a stage's error
WATCHED = Path(".retemper/sources")  # for each running stage that reads from outside the project: what it may read


def execute(
    plan: Plan,
    processes: Processes,
    display: Display,
    clock: timing.Clock,
    *,
    python: Mapping[str, str] = MappingProxyType({}),
    gate: Callable[[], None] | None = None,
) -> dict[str, Outcome]:
    """Run the plan as a Prefect flow run; returns how every stage ended, by name. `python`: environment of a prepared one.

    With a `gate`, `prepare` runs first, then the gate; where that raises a UserError, no other stage begins.
    """
    outcomes: dict[str, Outcome] = {}
    stages = plan.graph.stages
    kinds = {stage.slot for stage in stages.values() if stage.slot}
    devices = find_devices() if kinds else []
    slots = {kind: Slots(devices) for kind in kinds}
    gangs = Slots([""])
    needed = {workers: devices_needed(devices, workers) for workers in {stage.workers for stage in stages.values()}}
    frozen = {SNAPSHOT: str(plan.code.absolute())} if plan.code else {}

    @contextmanager
    def take_slot(name: str) -> Iterator[dict[str, str]]:
        slot = stages[name].slot
        if slot is None or spares_gpus(name):
            yield {}
            return
        count = needed[stages[name].workers]
        if not count:
            with elsewhere(gangs, stages[name].workers) as env:
                yield env
            return
        with slots[slot].take(count) as env, shared_slot(count):
            yield env

    @task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{name}")
    def bring_up_to_date(name: str) -> State[None]:
        logger, errors = get_run_logger(), list[str]()

        def tell(line: str) -> None:
            if processes.stopped:  # what a stage says to that is in its log
                return
            if line.startswith("\r"):
                display.passing(name, line[1:])
                return
            logger.info(line)
            if line.startswith(ERROR) and not line.startswith(WARNING):  # a stage's last line
                errors.append(line)
                return
            display.output(name, line)

        if name not in plan.changed:
            outcome = Outcome("Cached")
        else:
            ready = time.time()
            try:
                with take_slot(name) as env:
                    display.began(name)
                    clock.began(name)
                    began = time.time()
                    env = env | _watched(stages[name])
                    env |= {**python, **frozen, **display.environment, **environments.begin(name)}
                    outcome = run_stage(name, processes, tell, plan.reached, env)
                    spent = environments.cost(name)
                    outcome = replace(outcome, work=spent.get("seconds"))
                    device = timing.device_name(env, stages[name].slot)
                    state: timing.State = "Stopped" if processes.stopped else outcome.state if outcome.state != "Skipped" else "Failed"
                    span = timing.Span(name, ready, outcome.began or began, outcome.ended or time.time(), device, state)
                    clock.ended(span, *((environments.taken(name), spent) if state == "Ran" else ()))
            except Stopped:
                return Failed(message="stopped")
            except OSError as error:
                fault = disk_fault(error)
                problem = DiskError(f"{name}: {fault}").problem if fault else Problem("stage", f"{name}: {error}", 1)
                outcome = Outcome("Failed", 0.0, problem.status, problem)
            if gate and name == splits.STAGE and outcome.state != "Failed":
                try:
                    gate()
                except UserError as refused:
                    outcome = Outcome("Failed", outcome.seconds, refused.problem.status, refused.problem)
            if processes.stopped:
                return Failed(message="stopped")
            told = f"{ERROR}{outcome.problem.message}" if outcome.problem and display.alone(name) else ""  # the run ends, and says it
            for line in errors:
                if line != told:
                    display.output(name, line)
            display.ended(name, outcome)
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
            for name in sorted(stages, key=lambda name: bool(gate) and name != splits.STAGE):
                first = [splits.STAGE] if gate and not stages[name].upstream and name != splits.STAGE else []
                before = [futures[other] for other in (*stages[name].upstream, *first)]
                futures[name] = bring_up_to_date.submit(name, return_state=False, wait_for=before)
            for future in futures.values():
                future.wait()
            _metrics_artifact()
        failed = [name for name, outcome in outcomes.items() if outcome.state == "Failed"]
        return Failed(message=f"failed: {', '.join(failed)}") if failed else Completed()

    retemper(return_state=True)
    return outcomes


def _watched(stage: Stage) -> dict[str, str]:
    """Environment that tells a stage which files outside the project it may read, and that they are those it depends on."""
    if not stage.sources:
        return {}
    path = WATCHED / f"{stage.name}.json"
    write_json(path, watch(stage.sources))
    return {SOURCES: str(path.absolute())}


def shared_slot(count: int = 1) -> AbstractContextManager[None]:
    """`count` slots of the global concurrency limit that RETEMPER_DEVICE_LIMIT names, for runs that share this machine's devices.

    `strict`: a limit that the server lacks is an error; Prefect would otherwise let everyone through. A server that forgets the slot
    in the meantime does not end the stage.
    """
    limit = os.environ.get("RETEMPER_DEVICE_LIMIT")
    return concurrency(limit, occupy=count, strict=True, raise_on_lease_renewal_failure=False) if limit else nullcontext()


def _metrics_artifact() -> None:
    header, rows = metrics.rows(generations.present(metrics.read_metrics())[0])
    if rows:
        create_markdown_artifact(markdown_table(header, rows), key="metrics", description="metrics of every model, by split")
