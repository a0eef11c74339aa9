"""One retraining from beginning to end: new data, the pipeline, the comparison, the champion, the record of it all.

It works in a git worktree of its own (`flows.champions.tree`), one at a time, and never raises for what goes wrong in it: how it
ended is returned, recorded in `.retemper/retrainings.jsonl`, and reported. Whatever happens, the champion stays as it was or
is a new one that was shown to be no worse; nothing in between is visible.
"""

import contextlib
import sys
import time
import traceback
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flows.champions import champion, history, machines
from flows.champions import tree as retraining_tree
from flows.champions.champion import Champion
from flows.champions.history import Ended, Result
from flows.champions.measurement import OF_SERVER, SCRATCH, NotComparable, evaluate_champion, values
from flows.champions.parts import Parts, is_same_model, outs_of, parts_of
from flows.exporting.export import export_run
from flows.exporting.settings import read_export
from flows.intake import batches, inbox, settings
from flows.parameters import edit
from flows.parameters.sources import source_keys
from flows.pipeline import run, server
from flows.pipeline.plan import check_parameters
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import Problems, tell
from flows.process.processes import Processes, environment, stopping_on_signals
from flows.promotion import evidence, power
from flows.promotion.guaranteed import MOST
from flows.promotion.rule import Evidence, Promotion, Verdict, decide, measure_of
from flows.promotion.standing import standing
from flows.repository.git import GitFailed, git
from flows.repository.lock import corpus_of
from flows.repository.worktree import remove_worktree
from flows.results import metrics
from flows.results.generations import lock_here
from flows.retraining import notify, outcome, plan
from flows.retraining.settings import read_retraining
from tasks.core.stage.errors import Problem, UserError, one_line_errors, printable
from tasks.core.stage.files import read_json, write_json
from tasks.core.stage.params import read_yaml

LOCK = Path(".retemper/retraining.lock")
WAIT_SECONDS = 600.0  # for a gc that holds the worktree
TRIES = 5  # of a decision, where the champion changes meanwhile

T = TypeVar("T")


class Overtaken(Exception):
    """The champion, or the last record, is another than when this retraining began."""


def retrain(project: Path, follow: str = "HEAD", check: Callable[[], None] = check_parameters, *, dated: bool = False) -> Ended:
    """Retrain `project` at its commit `follow`; returns how that ended. UserError if another retraining is in progress, or none can begin.

    `dated`: its last line begins with the time, for a log. A stop (SIGTERM, SIGINT) is remembered and raised as KeyboardInterrupt.
    """
    display, exports = Display(), None
    with locks.only_run(project / LOCK):
        begun = Ended(uuid.uuid4().hex[:12], "killed", "killed half-way; the next run resumed", champion.timestamp())
        processes = Processes()
        try:
            with stopping_on_signals(processes):
                if killed := history.remember_killed(project):
                    _notify(project, killed, display)
                write_json(project / history.AT_WORK, asdict(begun))
                exports = read_export(project)
                ended = _decided(project, follow, begun, check=check, processes=processes, display=display)
        except KeyboardInterrupt:
            history.remember(project, replace(begun, result="stopped", reason="stopped; the next run resumes"), display.warn)
            raise
        except run.StagesFailed as failed:
            ended = replace(begun, result="failed", reason=batches.told(str(failed), retraining_tree.folder_of(project)))
        except (UserError, OSError) as error:
            ended = replace(begun, result="failed", reason=" ".join(str(error).split()))
        except (Exception, CancelledError) as error:  # the champion stays, and the reason is reported: no failure may go unnoticed
            traceback.print_exc()
            lost = "Prefect's server no longer knows this run" if isinstance(error, CancelledError) else error
            ended = replace(begun, result="failed", reason=f"{type(error).__name__}: {' '.join(str(lost).split())[:300]}")
        if ended.result == "failed":
            ended = replace(ended, champion=_number(project))
        ended = replace(ended, reason=printable(ended.reason))
        history.remember(project, ended, display.warn)
        if ended.commit is None:  # otherwise it has been pushed
            _say(machines.push(project), display)
        if ended.commit:
            outcome.show(retraining_tree.folder_of(project), ended, display)
        if ended.commit and exports:
            facts = {key: getattr(ended, key) for key in ("result", "reason", "champion", "candidate")} | {"retraining": ended.id}
            with contextlib.chdir(retraining_tree.folder_of(project)):
                export_run(project, exports, display.warn, commit=ended.commit, outcome=facts)
    display.line(f"{champion.timestamp()} {ended.line}" if dated else f"\n{ended.line}")
    _notify(project, ended, display)
    return ended


def _notify(project: Path, ended: Ended, display: Display) -> None:
    if ended.result != "unchanged":
        facts = {"champion": ended.champion, "candidate": ended.candidate, "commit": ended.commit}
        notify.notify(ended.result, f"{project.name}: {ended.line}", display.warn, **facts)


def _decided(project: Path, follow: str, begun: Ended, *, check: Callable[[], None], processes: Processes, display: Display) -> Ended:
    """Retrain and push the outcome; decide again where the champion has changed meanwhile. What is in the cache is not computed again."""

    def meet(folder: Path) -> None:
        _say(machines.fetch(folder), display)

    for _ in range(TRIES):
        with _inside(retraining_tree.prepare(project, follow, meet)) as tree:
            try:
                ended = _work(project, tree, begun, check, processes, display)
            except Overtaken as changed:
                display.line(f"{changed}; deciding again")
                continue
        met = machines.push(project) if ended.commit else machines.Met()
        _say(met, display)
        if not met.again:
            return ended
        history.remember(project, ended, display.warn)
        begun = Ended(uuid.uuid4().hex[:12], "killed", begun.reason, champion.timestamp())
        write_json(project / history.AT_WORK, asdict(begun))
    raise UserError(f"the champion changed {TRIES} times meanwhile; the next retraining decides")


def _say(met: machines.Met, display: Display) -> None:
    if met.problem:
        display.warn(met.problem)
    if met.told:
        display.line(met.told)


def _work(
    project: Path, tree: retraining_tree.Tree, begun: Ended, check: Callable[[], None], processes: Processes, display: Display
) -> Ended:
    """Everything between the worktree and the champion; the current folder is the worktree's."""
    rules = read_retraining()
    begun = replace(begun, intake=_take_in(rules.intake, project, display, processes=processes))
    sections = read_yaml(Path("params.yaml"))
    measure = measure_of(rules.promotion, sections)
    known = champion.read_champions(project)
    champions = champion.with_settings(project, known)
    now = champions[-1] if champions else None
    bring = partial(_run_pipeline, check, processes, display)
    planned = plan.make(project, rules.retrain, champions, fused=rules.promotion.fusions, run=lambda wanted: bring(targets=wanted))
    begun = replace(begun, how=planned.how)
    if rules.retrain.mode != "full":
        display.line(f"retraining: {planned.choice.mode}: {planned.choice.why}")
    if planned.systems:
        display.line(f"retraining: only {', '.join(planned.systems)} (retrain.systems), and what they need")
    if planned.choice.mode == "skip":
        return replace(begun, result="unchanged", reason=planned.choice.why, champion=now.number if now else None)
    if rules.promotion.rule == "guaranteed":
        standing(champions, measure, rules.promotion.anchor)  # an anchor that does not exist is refused now
    last = history.recorded(tree.folder, tree.tip) if tree.tip else None
    if line := power.foresee((last and last.comparison) or {}, rules.promotion, measure):
        display.line(line)
    sections = read_yaml(Path("params.yaml"))
    bring()

    found = {name: dict(splits) for name, splits in metrics.read_metrics().items()}
    groups = evidence.groups(Path(corpus_of(lock_here())))
    able = planned.among(found)
    chosen_on = evidence.choosing(able, measure, rules.promotion, groups=groups)
    model = metrics.best_model(chosen_on, measure, sections, fused=rules.promotion.fusions)
    new = Champion(
        number=(now.number if now else 0) + 1,
        model=model,
        cause="promoted" if now else "first",
        when=champion.timestamp(),
        measure=measure,
        metrics=found[model],
        replaced=now.number if now else None,
        previous=now.number if now else None,
    )
    made = parts_of(lock_here(), model, lambda path: read_json(Path(path)), where="dvc.lock")
    begun = replace(begun, candidate=model, champion=now.number if now else None, metrics=found)
    if now and (made.digests, made.fusion, made.settings) == (now.digests, now.fusion, now.settings):
        return replace(begun, result="unchanged", reason=f"{model} is champion/{now.number} itself: nothing that it depends on has changed")
    if now and (last := _nothing_new(tree, now.number)):
        return replace(begun, result="unchanged", reason=f"nothing new since {last.when}: {last.reason}")
    reason, promoted = f"{model} is the first champion", True
    if now and (old := champion.taken_back(champions, made)):
        reason, promoted = f"{model} is champion/{old.number}, which was taken back by hand; champion/{now.number} stays", False
    elif now and is_same_model(made, now) and made.digests.get("corpus") != now.digests.get("corpus"):
        reason = f"{model} is champion/{now.number}, its corpus is new"
        new = replace(new, cause="data")
    elif now:
        try:
            looks = evidence.looks(able, measure, sections, fused=rules.promotion.fusions)
            compare = partial(_compare, project, champions, new, made=made, found=found, looks=looks, rule=rules.promotion)
            verdict = compare(processes=processes, display=display)
            new = replace(new, comparison=asdict(verdict))
            reason, promoted = f"{model} against champion/{now.number}: {verdict.reason}", verdict.promoted
        except NotComparable as error:
            reason, promoted = f"{model} against {error}", False
        finally:
            remove_worktree(SCRATCH)
    reason = printable(reason)
    result: Result = "promoted" if promoted else "refused"
    ended = replace(begun, result=result, reason=reason, champion=new.number if promoted else begun.champion)
    ended = replace(ended, comparison=new.comparison or None)
    write_json(Path(retraining_tree.RECORD), asdict(ended))
    if champion.read_champions(project) != known:
        raise Overtaken("the champion was changed by hand, or by another machine, during this retraining")
    tree = replace(tree, tip=retraining_tree.resolve(project, retraining_tree.BRANCH))  # another machine's record may have come
    commit = retraining_tree.commit(tree, f"Retraining {ended.id}: {model} {result}\n\n{reason}\n")
    try:
        if promoted:
            new = replace(new, commit=commit, **champion.record_of(tree.folder, commit, model))
            champion.crown(tree.root, new, (commit, tree.tip))
        else:
            retraining_tree.move(tree.root, [f"update {retraining_tree.BRANCH} {commit} {tree.tip or retraining_tree.ZERO}"])
    except GitFailed as error:
        if champion.read_champions(project) == known and retraining_tree.resolve(project, retraining_tree.BRANCH) == tree.tip:
            raise
        raise Overtaken("another process recorded something during this retraining") from error
    with contextlib.suppress(GitFailed):  # all is done; the next run checks out again
        git("checkout", "--quiet", "--force", "--detach", commit, folder=tree.root)
    return replace(ended, commit=commit)


def _compare(
    project: Path,
    champions: Sequence[Champion],
    new: Champion,
    *,
    made: Parts,
    found: dict[str, dict[str, Any]],
    looks: int,
    rule: Promotion,
    processes: Processes,
    display: Display,
) -> Verdict:
    """The candidate `new` against the champion, and if it passes, each other one that stands; their metrics go to `found`.

    `looks`: see `evidence.looks`; only a guarantee asks for it.
    """

    def measured(one: Champion) -> dict[int, dict[str, float]]:
        work = partial(evaluate_champion, project, one, made.digests.get("corpus", ""), processes=processes, display=display)
        found[f"champion/{one.number}"] = _again(work)
        return {one.number: values(SCRATCH / "values", new.measure, found[f"champion/{one.number}"])}

    guaranteed, now = rule.rule == "guaranteed", champions[-1]
    others = [one for one in standing(champions, new.measure, rule.anchor) if one.number != now.number] if guaranteed else []
    old = measured(now)
    ours = values(evidence.VALUES / new.model, new.measure, found[new.model])
    seen = Evidence(ours, old, groups=evidence.groups(Path(made.paths["corpus"])))
    if guaranteed:
        fresh = evidence.fresh(project, now, made, queries=ours, warn=display.warn)
        slices = evidence.slices(Path(made.paths["corpus"]))
        seen = replace(seen, fresh=fresh, slices=slices, looks=looks)
    verdict = decide(seen, new.measure, rule)
    for one in others:
        if not verdict.promoted and (verdict.beaten or len(verdict.against) < MOST):  # of so many, it may beat one that is still to come
            break
        seen = replace(seen, old={**seen.old, **measured(one)})
        verdict = decide(seen, new.measure, rule)
    return verdict


def _nothing_new(tree: retraining_tree.Tree, champion_now: int) -> Ended | None:
    """The last retraining, where it met the present champion with the very same artifacts and rules: it would end the same again."""
    if tree.tip is None:
        return None
    last = history.recorded(tree.folder, tree.tip)
    if last is None or last.result == "superseded" or last.champion != champion_now:
        return None
    if outs_of(champion.locked(tree.folder, tree.tip)) != outs_of(lock_here()):
        return None
    before = champion.show(tree.folder, tree.tip, str(settings.FILE))
    rules = settings.FILE.read_text(encoding="utf-8").strip() if settings.FILE.exists() else None
    return last if (before.strip() if before is not None else None) == rules else None


def _take_in(rule: settings.Intake, project: Path, display: Display, *, processes: Processes) -> list[dict[str, Any]] | None:
    """Let params.yaml of the worktree name the data to train on, and what lies relative to the project by its whole path.

    Returns a record of each batch of the inbox, None without an inbox. What is kept out is reported.
    """
    taken = inbox.Taken("")
    sections = read_yaml(Path("params.yaml"))
    edits = []
    for key, name in source_keys(sections):
        if key == "dataset.source":
            taken = inbox.take_in(rule, name, project, say=display.line, processes=processes)
            place = taken.spec
        elif key == "articles.source":
            place = batches.absolute(name, project)
        else:  # an encoder: a Hugging Face id, package:MODULE/FOLDER, or a folder
            folder = project / Path(name).expanduser()
            place = str(folder.resolve()) if not name.startswith("package:") and folder.is_dir() else name
        if place != name:
            edits.append(edit.setting(key, place))
    edit.apply(edits, Path("params.yaml"), lambda _: None)
    for batch in taken.batches:
        display.line(printable(batch.line))
    if taken.missing:
        told = printable(f"batches that the last retraining had are gone from the inbox: {', '.join(taken.missing)}; put them back")
        display.warn(told)
        notify.notify("missing", f"{project.name}: {told}", display.warn, batches=list(taken.missing))
    if taken.bad:
        told = "; ".join(batch.line for batch in taken.bad)
        notify.notify("quarantined", printable(f"{project.name}: {told}"), display.warn, batches=[batch.name for batch in taken.bad])
    return [batch.record for batch in taken.batches] if taken.batches else None


def _run_pipeline(check: Callable[[], None], processes: Processes, display: Display, *, targets: Sequence[str] = ()) -> None:
    """`flows.pipeline.run.run` of `targets` (none: the report).

    If Prefect's server becomes unavailable meanwhile, a process that needs none does the rest.
    A server that restarted, or was unavailable for minutes, no longer knows the lease that a scheduled run holds of its deployment's
    limit; Prefect then raises its CancelledError in this thread.
    """
    _wait_for(locks.RUN_LOCK)
    try:
        run.run(targets, check=check, quiet=True, with_dev=True)
    except (Exception, CancelledError) as error:
        if isinstance(error, UserError | OSError | run.StagesFailed) and not isinstance(error, server.ServerUnavailable):
            raise
        if not server.is_configured():
            raise
        problem = str(error) if isinstance(error, server.ServerUnavailable) else f"Prefect ended the run ({type(error).__name__})"
        display.warn(f"{problem}; going on without its server")
        env = environment(PREFECT_HOME=str(server.HOME.absolute()))
        for name in OF_SERVER:
            env.pop(name, None)
        reported = Problems(server.HOME.parent / "pipeline.problem.json")
        command = [sys.executable, "-m", "flows.retraining.retrain", *targets]
        try:
            status = _again(lambda: processes.run(command, display.line, {**env, **reported.environment}))
        finally:
            problems = reported.take()
        if status:
            raise run.StagesFailed(problems or [Problem("pipeline", f"the pipeline ended with status {status}", status)], status) from None


def _again(work: Callable[[], T]) -> T:
    """`work`, once more where Prefect raises its CancelledError in it, which it does once for a lease; finished pieces are kept."""
    try:
        return work()
    except CancelledError:
        return work()


def _wait_for(lock: Path) -> None:
    """Wait until the worktree is free (a gc holds it while it looks), at most WAIT_SECONDS; UserError then."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with locks.only_run(lock):
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


@contextlib.contextmanager
def _inside(tree: retraining_tree.Tree) -> Iterator[retraining_tree.Tree]:
    with contextlib.chdir(tree.folder):
        yield tree


def _number(project: Path) -> int | None:
    with contextlib.suppress(UserError, OSError):
        now = champion.current(project)
        return now.number if now else None
    return None


def main() -> int:
    """The pipeline alone, in the current folder, its parameters checked before: `python -m flows.retraining.retrain [TARGET ...]`."""
    try:
        with one_line_errors():
            run.run(sys.argv[1:], check=lambda: None, quiet=True, with_dev=True)
    except run.StagesFailed as failed:
        tell(failed.problems)
        return failed.status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
