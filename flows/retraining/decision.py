"""Whether the best model of a run becomes champion, and the record of that. The current folder is the retrainings' worktree."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.champions import champion, history
from flows.champions import tree as retraining_tree
from flows.champions.champion import Champion
from flows.champions.history import Ended
from flows.champions.measurement import SCRATCH, NotComparable, evaluate_champion, is_measurable, values
from flows.champions.parts import Parts, is_same_model, outs_of, parts_of
from flows.intake import settings
from flows.process.display import Display
from flows.process.processes import Processes
from flows.promotion import evidence
from flows.promotion.guaranteed import MOST
from flows.promotion.records import Evidence, Promotion, Verdict
from flows.promotion.rule import decide
from flows.promotion.standing import rivals, way_out
from flows.repository.git import GitFailed, git
from flows.repository.lock import corpus_of, current_lock, read_blob
from flows.repository.tags import refuse_other_projects
from flows.repository.worktree import remove_worktree
from flows.results import metrics
from flows.retraining.pipeline import retry_cancelled
from flows.retraining.plan import Planned
from tasks.core.errors import printable
from tasks.core.files import read_json, write_json
from tasks.core.params.sections import read_yaml


class Overtaken(Exception):
    """The champion, or the last record, has changed since this retraining began."""


@dataclass(frozen=True)
class Candidate:
    """The best model of a run: the champion that it would be, its parts, and `metrics`, those of every system.

    `looks`: see `evidence.count_looks`; only rule guaranteed uses it.
    """

    champion: Champion
    parts: Parts
    metrics: dict[str, dict[str, Any]]
    looks: int


@dataclass(frozen=True)
class Decision:
    """Whether the candidate becomes `champion`, and why."""

    champion: Champion
    promoted: bool
    reason: str


def find_candidate(planned: Planned, now: Champion | None, *, measure: str, rule: Promotion) -> Candidate:
    """The best model of the run that has just ended, chosen as `rule` says; `now` is the current champion."""
    sections = read_yaml(Path("params.yaml"))
    all_metrics = {name: dict(splits) for name, splits in metrics.read_metrics().items()}
    eligible = planned.eligible(all_metrics)
    chosen_on = evidence.choosing_metrics(eligible, measure, rule, groups=evidence.groups(Path(corpus_of(current_lock()))))
    model = metrics.best_model(chosen_on, measure, sections, fused=rule.fusions)
    new = Champion(
        number=(now.number if now else 0) + 1,
        model=model,
        cause="promoted" if now else "first",
        when=champion.timestamp(),
        measure=measure,
        metrics=all_metrics[model],
        replaced=now.number if now else None,
        previous=now.number if now else None,
    )
    parts = parts_of(current_lock(), model, lambda path: read_json(Path(path)), where="dvc.lock")
    return Candidate(new, parts, all_metrics, evidence.count_looks(eligible, measure, sections, fused=rule.fusions))


def nothing_new(tree: retraining_tree.Tree, candidate: Candidate, champions: Sequence[Champion], *, rule: Promotion) -> str | None:
    """Why there is nothing to decide, or None: the candidate is the champion itself, or the last retraining was just the same.

    After a refusal without a comparison there is, as soon as each champion that is compared with it can be measured.
    """
    model, parts, now = candidate.champion.model, candidate.parts, champions[-1]
    if (parts.digests, parts.fusion, parts.settings) == (now.digests, now.fusion, now.settings):
        return f"{model} is champion/{now.number} itself: nothing that it depends on has changed"
    last = _same_again(tree, now.number)
    if last is None:
        return None
    not_compared = last.result == "refused" and last.comparison is None and not champion.find_rejected(champions, parts)
    if not_compared and all(is_measurable(tree.folder, rival) for rival in rivals(champions, candidate.champion.measure, rule)):
        return None
    return f"nothing new since {last.when}: {last.reason}"


def _same_again(tree: retraining_tree.Tree, champion_now: int) -> Ended | None:
    """The last retraining if it had the same champion, artifacts, and rules, so that this one would end the same; else None."""
    if tree.tip is None:
        return None
    last = history.read_outcome(tree.folder, tree.tip)
    if last is None or last.result == "superseded" or last.champion != champion_now:
        return None
    if outs_of(champion.lock_at(tree.folder, tree.tip)) != outs_of(current_lock()):
        return None
    rules_before = read_blob(tree.tip, str(settings.FILE), tree.folder)
    rules = settings.FILE.read_text(encoding="utf-8") if settings.FILE.exists() else None
    return last if _lines(rules_before) == _lines(rules) else None


def _lines(text: str | None) -> list[str] | None:
    return None if text is None else text.strip().splitlines()


def make_decision(
    project: Path, champions: Sequence[Champion], candidate: Candidate, *, rule: Promotion, processes: Processes, display: Display
) -> Decision:
    """Decide by `rule`. The first model becomes champion, as does the champion's own model over a new corpus. A model that was taken back
    by hand is refused. Others are compared."""
    new, parts = candidate.champion, candidate.parts
    if not champions:
        groups = evidence.groups(Path(parts.paths.get("corpus", "data/corpus")))
        basis = evidence.chosen_on(new.model, new.measure, rule, groups=groups)
        return Decision(new, promoted=True, reason=f"{new.model} is the first champion{basis}")
    now = champions[-1]
    if old := champion.find_rejected(champions, parts):
        reason = f"{new.model} is champion/{old.number}, which was rolled back by hand; champion/{now.number} stays"
        return Decision(new, promoted=False, reason=reason)
    if is_same_model(parts, now) and parts.digests.get("corpus") != now.digests.get("corpus"):
        reason = f"{new.model} is the model of champion/{now.number}, with new data"
        return Decision(replace(new, cause="data"), promoted=True, reason=reason)
    try:
        verdict = compare(project, champions, candidate, rule=rule, processes=processes, display=display)
    except NotComparable as error:
        return Decision(new, promoted=False, reason=printable(f"{new.model} against {error}"))
    finally:
        remove_worktree(SCRATCH)
    reason = printable(f"{new.model} against champion/{now.number}: {verdict.reason}")
    return Decision(replace(new, comparison=asdict(verdict)), verdict.promoted, reason)


def compare(
    project: Path, champions: Sequence[Champion], candidate: Candidate, *, rule: Promotion, processes: Processes, display: Display
) -> Verdict:
    """Compare the candidate with the champion and, if it passes, with each other standing one; add their metrics to `candidate.metrics`."""
    new, parts, all_metrics = candidate.champion, candidate.parts, candidate.metrics

    def measured(rival: Champion) -> dict[int, dict[str, float]]:
        work = partial(evaluate_champion, project, rival, processes=processes, display=display)
        try:
            all_metrics[f"champion/{rival.number}"] = retry_cancelled(work)
        except NotComparable as error:
            remedy = way_out(champions, rival, new.measure, rule=rule)
            raise NotComparable(f"{error}, so the two cannot be compared; champion/{now.number} stays ({remedy})") from None
        return {rival.number: values(SCRATCH / "values", new.measure)}

    guaranteed, now = rule.rule == "guaranteed", champions[-1]
    others = [rival for rival in rivals(champions, new.measure, rule) if rival.number != now.number]
    old_values = measured(now)
    new_values = values(evidence.VALUES / new.model, new.measure)
    measurements = Evidence(new_values, old_values, groups=evidence.groups(Path(parts.paths["corpus"])))
    if guaranteed:
        fresh = evidence.fresh_queries(project, now, parts, queries=new_values, warn=display.warn)
        slices = evidence.slices(Path(parts.paths["corpus"]))
        measurements = replace(measurements, fresh=fresh, slices=slices, looks=candidate.looks)
    verdict = decide(measurements, new.measure, rule)
    for rival in others:
        if not verdict.promoted and (verdict.beaten or len(verdict.against) < MOST):  # from MOST on, it must beat one, perhaps the next
            break
        measurements = replace(measurements, old={**measurements.old, **measured(rival)})
        verdict = decide(measurements, new.measure, rule)
    return verdict


def record(project: Path, tree: retraining_tree.Tree, decision: Decision, *, ended: Ended, known: Sequence[Champion]) -> str:
    """Commit `ended`, and crown the champion if the decision says so; return the commit.

    Raises Overtaken if the champions are no longer `known`, or another process has recorded something meanwhile; UserError if another
    project of the repository has champions by now.
    """
    refuse_other_projects(project)
    write_json(Path(retraining_tree.RECORD), asdict(ended))
    if champion.read_champions(project) != known:
        raise Overtaken("the champion was changed by hand, or by another machine, during this retraining")
    tree = replace(tree, tip=retraining_tree.resolve(project, retraining_tree.BRANCH))  # another machine's record may have come
    new = decision.champion
    commit = retraining_tree.commit(tree, f"Retraining {ended.id}: {new.model} {ended.result}\n\n{ended.reason}\n")
    try:
        if decision.promoted:
            crowned = replace(new, commit=commit, **champion.record_of(tree.folder, commit, new.model))
            champion.crown(tree.folder, crowned, (commit, tree.tip))
        else:
            retraining_tree.move(tree.root, [f"update {retraining_tree.BRANCH} {commit} {tree.tip or retraining_tree.ZERO}"])
    except GitFailed as error:
        if champion.read_champions(project) == known and retraining_tree.resolve(project, retraining_tree.BRANCH) == tree.tip:
            raise
        raise Overtaken("another process recorded something during this retraining") from error
    with contextlib.suppress(GitFailed):  # all is done; the next run checks out again
        git("checkout", "--quiet", "--force", "--detach", commit, folder=tree.root)
    return commit
