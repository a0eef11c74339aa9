"""A run from beginning to end: plan, stages, push, tables. Prefect is imported only if there is something to do."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from flows.measuring import timing
from flows.pages import measured
from flows.pipeline import server, splits
from flows.pipeline.forecast import forecasts, refuse_small_disk
from flows.pipeline.plan import Plan, check_parameters, make_plan, with_analyses
from flows.process import locks
from flows.process.display import Display, Outcome, summary, text_table
from flows.process.prepared import DVC, MODELS, TABLES, PreparedPython, python
from flows.process.processes import Processes, environment, stopping_on_signals
from flows.repository import leftovers, worktree
from flows.repository.git import FULL_BYTES
from flows.repository.graph import DEFAULT_TARGET
from flows.results import generations, metrics
from flows.storage.cache import cache_folder, refuse_read_only
from flows.team import remotes, sync
from flows.watching.record import Recorder, StageNow, read, recording
from tasks.core.errors import FULL, USER_ERROR, DiskError, Problem, UserError
from tasks.core.files import write_text
from tasks.core.params.sections import FROZEN, read_parameters
from tasks.core.stage.frozen import freeze
from tasks.core.stage.scratch import remove_finished

STUDIES = Path("data/studies")
TABLE = Path("data/report/table.txt")


class StagesFailed(Exception):
    """Some stages failed: why, and the exit status."""

    def __init__(self, problems: Sequence[Problem], status: int) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems, self.status = tuple(problems), status


def run(
    targets: Sequence[str] = (),
    check: Callable[[], None] = check_parameters,
    *,
    nested: bool = False,
    with_dev: bool = False,
    edits: Sequence[str] = (),
    ignore_disk: bool = False,
    undo: Callable[[], None] = lambda: None,
) -> dict[str, Outcome]:
    """Bring `targets` (default: the report) up to date; returns how each stage ended. Raises StagesFailed, or UserError before any ran.

    `nested`: within another command, which says itself what was done. Print nothing if nothing has changed, record a run of targets as a
    part (`retemper watch`), and name pages by absolute paths, since the folder may be a worktree.
    `with_dev`: refuse a data set without dev.
    `ignore_disk`: run even if the estimated new files do not fit.
    `undo` reverts the `edits` of a run that is refused, also in what stages read. If a data set turns out unfit only once it is prepared
    (splits.Unfit), dvc.lock and data/ are restored as well.
    """
    started = time.monotonic()
    processes = Processes()
    display = Display()
    with stopping_on_signals(processes, display.farewell), locks.hold_run_lock():
        clock = timing.Clock(cache=cache_folder())
        try:
            plan = make_plan(targets, processes, display.warn, check=check)
            if plan.changed:
                refuse_read_only(cache_folder())
            if plan.changed and not ignore_disk:
                refuse_small_disk([name for name in plan.graph.stages if name in plan.changed])
        except UserError:
            undo()
            raise
        clock.provenance = plan.provenance
        remotes.register_again(cache_folder(), display.warn)
        nothing_to_do = nested and not plan.changed

        def gate() -> None:
            sections = read_parameters(FROZEN) if FROZEN.exists() else {}
            if warning := splits.check(plan.graph.stages, sections, edits=edits, with_dev=with_dev):
                display.warn(warning)

        try:
            with _record_run(plan, part=nested and bool(targets)) as recorder, display.open(plan.graph.stages, recorder):
                outcomes = _all_cached(plan) if nothing_to_do else _execute(plan, processes, display, clock=clock, gate=gate)
        except splits.Unfit:
            undo()
            _restore_lock(processes)
            raise
        if len(outcomes) == len(plan.graph.stages) and all(outcome.state in ("Ran", "Cached") for outcome in outcomes.values()):
            if not targets:  # DVC may not have the outs of another stage yet
                remove_finished()
            leftovers.remove_unfinished((out for name in outcomes for out in plan.graph.stages[name].outs), cache_folder())
            locks.forget()
        if plan.remote and not sync.is_pushed(plan.remote):
            sync.push(processes, plan.remote, display.warn)
    if nothing_to_do:
        return outcomes
    _show_tables(plan, outcomes, display)
    if clock.spans:
        _write_pages(plan, clock, display, below=_shown_folder(nested))
    display.line(f"\n{summary(list(plan.graph.stages), outcomes, time.monotonic() - started)}")
    _refuse_failed(plan, outcomes)
    return outcomes


def dry_run(
    targets: Sequence[str] = (), check: Callable[[], None] = check_parameters, edited: AbstractContextManager[object] | None = None
) -> Plan:
    """The stages that DVC would look at, why, and their costs: changed ones and all that read from them. Nothing is run or deleted.

    `edited` is entered for the duration.
    """
    processes = Processes()
    display = Display()
    with stopping_on_signals(processes, display.farewell), locks.hold_run_lock():  # a run in progress has its own frozen parameters
        try:
            with edited or nullcontext():
                plan = make_plan(targets, processes, display.warn, check=check, dry=True)
                return replace(plan, costs=tuple(forecasts([name for name, _, _ in plan.changed_stages()])))
        finally:
            freeze()  # without the edit


def _show_tables(plan: Plan, outcomes: Mapping[str, Outcome], display: Display) -> None:
    """Print the metrics, what they leave out, and the tables of studies, unless the stage that made them has just printed them.

    A run without evaluations (`retemper run prepare`) prints no metrics.
    """
    if any(_measured(plan, name) for name in plan.graph.stages):
        shown, left_out = generations.current_metrics(metrics.read_metrics())
        shown, unmeasured = generations.leave_out(shown, _unmeasured(plan, outcomes))
        header, rows = metrics.rows(shown)
        report_state = outcomes[DEFAULT_TARGET].state if DEFAULT_TARGET in outcomes else ""
        if report_state == "Cached" and TABLE.is_file() and not left_out and not unmeasured:
            display.line(f"\n{TABLE.read_text(encoding='utf-8').rstrip()}")
        elif rows and report_state != "Ran":  # otherwise it has just printed it itself
            display.line(f"\n{text_table(header, rows)}")
        for note in filter(None, (left_out, unmeasured)):
            display.line(note)
    for name, outcome in outcomes.items():
        table = STUDIES / name.partition("@")[2] / "table.md"
        if name.startswith("study@") and outcome.state == "Cached" and table.is_file():  # one that ran has printed it
            display.line(f"\n{name}\n\n{table.read_text(encoding='utf-8')}")


def _record_run(plan: Plan, *, part: bool = False) -> AbstractContextManager[Recorder | None]:
    """The record of a run for `retemper watch`. A run with nothing to do keeps the last run's record if that run has ended."""
    if not plan.changed:
        last = read()
        return nullcontext() if last and last.is_done else recording([StageNow(name, "cached") for name in plan.graph.stages])
    estimates: dict[str, float | None] = {}
    with suppress(UserError, OSError):  # a run does not need estimates
        estimates = {cost.stage: cost.seconds for cost in forecasts([name for name in plan.graph.stages if name in plan.changed])}
    return recording([StageNow(name, estimate=estimates.get(name)) for name in plan.graph.stages], part=part)


def _shown_folder(absolute: bool) -> Path | None:
    """The current folder as shown to the user: absolute in another command's worktree (`absolute`), None if that is removed afterwards."""
    folder = Path.cwd()
    return None if worktree.is_temporary(folder) else folder if absolute or worktree.SECOND in os.environ else Path()


def _write_pages(plan: Plan, clock: timing.Clock, display: Display, *, below: Path | None) -> None:
    try:
        graph = with_analyses(plan.pages())
        measured.write(
            graph, [span for span in clock.spans if span.state != "Cached"], display.line, provenance=plan.provenance, below=below
        )
    except (OSError, UserError) as error:  # the run itself is done
        display.warn(f"pages of times were not written: {error}")


def _refuse_failed(plan: Plan, outcomes: Mapping[str, Outcome]) -> None:
    """Raise StagesFailed if a stage failed or never began."""
    failed = [outcome for outcome in outcomes.values() if outcome.state == "Failed"]
    if failed:
        status = 1 if any(outcome.status != USER_ERROR for outcome in failed) else USER_ERROR
        raise StagesFailed([outcome.problem for outcome in failed if outcome.problem], status)
    if unfinished := [name for name in plan.graph.stages if name not in outcomes]:
        refuse_full_disk()
        message = f"{unfinished[0]}: Prefect ended the run before this stage (log: {server.LOG}); the same command resumes the run"
        raise StagesFailed([Problem("pipeline", message, 1)], 1)


def _unmeasured(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """The models whose metrics this run should have brought up to date but did not, each with the reason."""
    states = {name: outcomes[name].state.lower() if name in outcomes else "skipped" for name in plan.graph.stages}
    return {
        model: f"evaluation {state}" for name, state in states.items() if state not in ("ran", "cached") for model in _measured(plan, name)
    }


def _measured(plan: Plan, name: str) -> list[str]:
    """The models whose metrics a stage makes."""
    folder = metrics.METRICS.absolute()
    return [out.stem for out in plan.graph.stages[name].outs if out.suffix == ".json" and out.parent == folder]


def _all_cached(plan: Plan) -> dict[str, Outcome]:
    return {name: Outcome("Cached") for name in plan.graph.stages}


def _restore_lock(processes: Processes) -> None:
    """Restore dvc.lock as it was when the run began, and the outs that it names, as far as the cache has them."""
    if not locks.BEFORE.exists():
        return
    text = locks.BEFORE.read_text(encoding="utf-8")
    write_text(locks.DVC_LOCK, text) if text else locks.DVC_LOCK.unlink(missing_ok=True)
    env = environment()
    processes.run([python(env), *sync.REMOTE[1:], "checkout", "--quiet", "--force"], lambda _: None, env)
    locks.forget()


def _execute(plan: Plan, processes: Processes, display: Display, *, clock: timing.Clock, gate: Callable[[], None]) -> dict[str, Outcome]:
    """Run every stage of the plan. A refusal by `gate` is raised before any stage but `prepare`, and those it needs, has begun."""
    if plan.changed and splits.STAGE not in plan.changed:
        gate()
    if not plan.changed and not server.is_configured():
        return _all_cached(plan)
    configured, own_server = server.is_configured(), None
    refused: list[splits.Unfit] = []

    def remembering() -> None:
        try:
            gate()
        except splits.Unfit as problem:
            refused.append(problem)
            raise

    try:
        with PreparedPython(_modules_to_import(plan)) as python:
            own_server = server.use_server()
            from flows.pipeline.flow import execute

            gated = remembering if splits.STAGE in plan.changed else None
            with server.without_heartbeats() if own_server else nullcontext():
                outcomes = execute(plan, processes, display, clock=clock, python=python.environment, gate=gated)
    except Exception as error:
        refuse_full_disk(error)  # Prefect's database reports it in many ways
        if configured and not server.answers():
            raise server.ServerUnavailable(error) from error
        if own_server:
            own_server.refuse_ended()
        raise
    if refused:
        raise refused[0]
    return outcomes


def _modules_to_import(plan: Plan) -> list[str]:
    """The modules that the stages to run import, and those of DVC, which runs each stage."""
    if not plan.changed:
        return []
    return [*DVC, *TABLES, *(MODELS if any(plan.graph.stages[name].slot for name in plan.changed) else ())]


def refuse_full_disk(cause: Exception | None = None) -> None:
    """Raise DiskError if the disk of the current folder is full, whatever else went wrong."""
    if shutil.disk_usage(Path.cwd() / server.HOME.parent).free < FULL_BYTES:
        raise DiskError(f"{Path.cwd()}: {FULL}; finished stages are kept, make room and run again") from cause
