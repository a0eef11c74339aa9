"""One retraining from beginning to end: new data, the pipeline, the comparison, the champion, the record of it all.

It works in a git worktree of its own (`flows.champions.tree`), one at a time, and never raises for what goes wrong in it: how it
ended is returned, recorded in `.retemper/retrainings.jsonl`, and reported. Whatever happens, the champion stays as it was or
is a new one that was shown to be no worse; nothing in between is visible.
"""

import contextlib
import traceback
import uuid
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from flows.batches import merge
from flows.champions import champion, history, machines
from flows.champions import tree as retraining_tree
from flows.champions.history import Ended
from flows.exporting.export import export_run
from flows.exporting.settings import read_export
from flows.pipeline import run
from flows.pipeline.plan import check_parameters
from flows.process.display import Display
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.project import settings_errors
from flows.retraining import decision, notify, outcome, outlook
from flows.retraining.pipeline import run_pipeline
from tasks.core.errors import UserError, disk_fault, printable
from tasks.core.files import write_json

TRIES = 5  # to decide, if the champion changes meanwhile


def retrain(project: Path, follow: str = "HEAD", check: Callable[[], None] = check_parameters, *, dated: bool = False) -> Ended:
    """Retrain `project` at its commit `follow`; returns how that ended. UserError if another retraining is in progress, or none can begin.

    `dated`: its last line begins with the time, for a log. A stop (SIGTERM, SIGINT) is remembered and raised as KeyboardInterrupt.
    """
    display, exports = Display(), None
    with retraining_tree.hold_for_retraining(project, lambda: display.line("waiting for retemper retrain --dry-run to end")):
        attempt, processes = _Attempt(project), Processes()
        try:
            with stopping_on_signals(processes), settings_errors():
                if killed := history.remember_killed(project):
                    _notify(project, killed, display)
                attempt.begin()
                exports = read_export(project)
                ended = _retrain_until_settled(project, follow, attempt, check=check, processes=processes, display=display)
        except KeyboardInterrupt:
            stopped = replace(attempt.begun, result="stopped", reason="stopped; the next run resumes")
            history.remember_stopped(project, stopped, display.warn)
            raise
        except run.StagesFailed as failed:
            ended = replace(attempt.begun, result="failed", reason=merge.name_batches(str(failed), retraining_tree.folder_of(project)))
        except (UserError, OSError) as error:
            message = (disk_fault(error) if isinstance(error, OSError) else "") or str(error)
            ended = replace(attempt.begun, result="failed", reason=" ".join(message.split()))
        except (Exception, CancelledError) as error:  # the champion stays, and the reason is reported: no failure may go unnoticed
            traceback.print_exc()
            cause = "Prefect's server no longer knows this run" if isinstance(error, CancelledError) else error
            ended = replace(attempt.begun, result="failed", reason=f"{type(error).__name__}: {' '.join(str(cause).split())[:300]}")
        if ended.result == "failed":
            ended = replace(ended, champion=_number(project))
        ended = replace(ended, reason=printable(ended.reason))
        history.remember(project, ended, display.warn)
        _notify(project, ended, display)  # before what may be slow, or be the failure's cause
        if ended.commit is None:  # otherwise it has been pushed
            _say(machines.push(project), display)
        if ended.commit:
            outcome.show(retraining_tree.folder_of(project), ended, display)
        if ended.commit and exports:
            facts = {key: getattr(ended, key) for key in ("result", "reason", "champion", "candidate")} | {"retraining": ended.id}
            with contextlib.chdir(retraining_tree.folder_of(project)):
                export_run(project, exports, display.warn, commit=ended.commit, outcome=facts)
    display.line(f"{champion.timestamp()} {ended.line}" if dated else f"\n{ended.line}")
    return ended


def report_killed(project: Path) -> None:
    """Remember a retraining that was killed, and send its notice; the next one does it otherwise. Nothing happens if one is at work."""
    if (project / history.AT_WORK).exists():
        with contextlib.suppress(UserError), retraining_tree.hold_if_idle(project):
            display = Display()
            if killed := history.remember_killed(project):
                _notify(project, killed, display)


def _notify(project: Path, ended: Ended, display: Display) -> None:
    if ended.result != "unchanged":
        facts = {"champion": ended.champion, "candidate": ended.candidate, "commit": ended.commit}
        notify.notify(ended.result, f"{project.name}: {ended.line}", display.warn, **facts)


class _Attempt:
    """The attempt in progress. A new one, with an id of its own, begins if the champion changes while its promotion is pushed."""

    def __init__(self, project: Path) -> None:
        self._note = project / history.AT_WORK
        self._renew()

    def _renew(self) -> None:
        self.begun = Ended(uuid.uuid4().hex[:12], "killed", "killed half-way; the next run resumed", champion.timestamp())

    def begin(self) -> None:
        """Leave the note that the next retraining finds if this one is killed."""
        write_json(self._note, asdict(self.begun))

    def begin_again(self) -> None:
        """The last attempt has ended, and is in the history: what goes wrong from now on is another entry."""
        self._renew()
        self.begin()


def _retrain_until_settled(
    project: Path, follow: str, attempt: _Attempt, *, check: Callable[[], None], processes: Processes, display: Display
) -> Ended:
    """Retrain and push the outcome; decide again if the champion has changed meanwhile. Nothing in the cache is computed again."""

    def meet(folder: Path) -> None:
        _say(machines.fetch(folder), display)

    for _ in range(TRIES):
        tree = retraining_tree.prepare(project, follow, meet)
        with contextlib.chdir(tree.folder):
            try:
                ended = _retrain_once(project, tree, attempt.begun, check=check, processes=processes, display=display)
            except decision.Overtaken as changed:
                display.line(f"{changed}; deciding again")
                continue
        met = machines.push(project) if ended.commit else machines.Met()
        _say(met, display)
        if not met.again:
            return ended
        history.remember(project, ended, display.warn)
        attempt.begin_again()
    raise UserError(f"the champion changed {TRIES} times during this retraining; the next one decides")


def _say(met: machines.Met, display: Display) -> None:
    if met.problem:
        display.warn(met.problem)
    if met.merged:
        display.line(met.merged)


def _retrain_once(
    project: Path, tree: retraining_tree.Tree, begun: Ended, *, check: Callable[[], None], processes: Processes, display: Display
) -> Ended:
    """All steps from the prepared worktree to the recorded decision. The current folder is in the worktree."""
    bring = partial(run_pipeline, check, processes, display)
    seen = outlook.look(project, tree, bring=bring, processes=processes, display=display)
    rules, planned, now = seen.rules, seen.planned, seen.current_champion
    begun = replace(begun, intake=seen.intake, how=planned.how, champion=now.number if now else None)
    if planned.choice.mode == "skip":
        return replace(begun, result="unchanged", reason=planned.choice.why)
    bring()

    candidate = decision.find_candidate(planned, now, measure=seen.measure, rule=rules.promotion)
    begun = replace(begun, candidate=candidate.champion.model, metrics=candidate.metrics)
    if now and (reason := decision.nothing_new(tree, candidate, seen.champions, rule=rules.promotion)):
        return replace(begun, result="unchanged", reason=reason)
    decided = decision.make_decision(project, seen.champions, candidate, rule=rules.promotion, processes=processes, display=display)
    ended = replace(begun, result="promoted" if decided.promoted else "refused", reason=decided.reason)
    ended = replace(
        ended, champion=decided.champion.number if decided.promoted else begun.champion, comparison=decided.champion.comparison or None
    )
    return replace(ended, commit=decision.record(project, tree, decided, ended=ended, known=seen.known))


def _number(project: Path) -> int | None:
    with contextlib.suppress(UserError, OSError):
        now = champion.current(project)
        return now.number if now else None
    return None
