"""Whether a new model takes the champion's place: `decide`, from values by dev query alone."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flows.intake.settings import FILE
from flows.promotion.records import Evidence, Promotion, Verdict
from tasks.core.errors import UserError
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import metric_of
from tasks.core.plurals import counted
from tasks.core.statistics.confirmation import shuffled
from tasks.core.statistics.judged import is_click


def decide(evidence: Evidence, measure: str, rule: Promotion) -> Verdict:
    """Decide by the rule whether the new model is promoted, on the dev queries that do not come from a click log.

    Raises UserError if the models were measured on different queries, or on too few.
    """
    for other in evidence.old.values():
        if evidence.new.keys() != other.keys():
            raise UserError(f"dev: the models were measured on different queries ({len(evidence.new)} and {len(other)}), expected the same")
    evidence = _without_clicks(evidence)
    if rule.rule == "guaranteed":
        from flows.promotion.guaranteed import guarantee  # numpy: not with every command

        return guarantee(evidence, measure, rule)
    return judge(evidence.new, next(iter(evidence.old.values())), measure, rule=rule, groups=evidence.groups)


def _without_clicks(evidence: Evidence) -> Evidence:
    judged_queries = {query for query in evidence.new if not is_click(query)}
    if evidence.new and not judged_queries:
        problem = (
            f"all {len(evidence.new):,} judged queries come from clicks" if len(evidence.new) != 1 else "its only query comes from a click"
        )
        raise UserError(f"dev: {problem}, which decide no promotion; add queries with judgments")
    new, *old = ({query: values[query] for query in values if query in judged_queries} for values in (evidence.new, *evidence.old.values()))
    return replace(evidence, new=new, old=dict(zip(evidence.old, old, strict=True)))


def judge(new: Mapping[str, float], old: Mapping[str, float], measure: str, *, rule: Promotion, groups: Mapping[str, str]) -> Verdict:
    """Compare values of `measure` by query, by a t-test. not_worse: the bound L >= -margin; better: L > 0.

    UserError for fewer than two queries.
    """
    from flows.promotion.groups import draws, lower_bound, t_bound  # numpy and scipy: not with every command

    if len(new) < 2:
        shared = f"{len(new):,} judged {'query' if len(new) == 1 else 'queries'} in common"
        raise UserError(f"dev: found {shared}, expected at least 2 to compare models on; add queries and qrels")
    sample = draws({query: new[query] - old[query] for query in new}, shuffled(new, groups), groups)
    bound = lower_bound(sample, rule.alpha)
    promoted = bound >= -rule.margin if rule.rule == "not_worse" else bound > 0
    condition = f">= {-rule.margin:.4f}" if rule.rule == "not_worse" else "> 0"
    mean = math.fsum(sample.differences.tolist()) / sample.queries
    only_t_passes = not promoted and t_bound(sample, rule.alpha) >= (-rule.margin if rule.rule == "not_worse" else 0)
    needed = rare_loss_note(mean, rule, groups=sample.groups, queries=sample.queries) if only_t_passes else ""
    reason = f"{measure} {mean:+.4f} on dev ({counted(sample.queries, 'queries')}{sample.note}), lower bound {bound:+.4f} "
    reason += f"is {'' if promoted else 'not '}{condition} ({rule.rule}){needed}"
    return Verdict(
        promoted,
        reason,
        measure,
        sample.queries,
        math.fsum(new.values()) / len(new),
        math.fsum(old.values()) / len(old),
        mean,
        bound,
        rule=rule.rule,
        spread=sample.spread,
        dev=len(new),
        level=rule.alpha,
        groups=sample.groups,
        most=sample.most,
    )


def rare_loss_note(mean: float, rule: Promotion, *, groups: int, queries: int) -> str:
    """A remark on how many queries are needed, if a t-test alone would promote but so few may miss rare losses; else empty."""
    target = -rule.margin if rule.rule == "not_worse" else 0.0
    if mean <= target or target <= -1:
        return ""
    needed = math.ceil(math.log(rule.alpha) / math.log((1 + target) / (1 + mean)))
    if groups >= needed:
        return ""
    return f"; fewer than {math.ceil(needed * queries / groups):,} queries cannot show it, since losses may be too rare to be seen"


def measure_of(rule: Promotion, sections: Mapping[str, Any]) -> str:
    """The measure that chooses and decides. UserError if `evaluate` does not compute it, or lower values of it are better."""
    measure = rule.metric or metric_of(sections)
    known = (sections.get("evaluate") or {}).get("measures")
    if known and measure not in known:
        raise UserError(f"{FILE}: promotion.metric: found {measure!r}, expected one of evaluate.measures: {', '.join(known)}")
    if lower_is_better(measure):
        raise UserError(
            f"{FILE}: promotion.metric: found {measure!r}, which counts mistakes, expected a measure that is higher for a better model"
        )
    return measure
