"""Rule `guaranteed`: what is promoted is not worse than the best champion so far, whatever else is promoted in a year.

**Claim.** Call a promotion false if the new model's mean is more than `margin` below that of the best champion since the chain began
(flows/promotion/standing.py), and a "better" false if the new model is no better than a champion that it is said to beat. In any
`comparisons` comparisons in a row, the chance of any false promotion is at most `alpha`, and so is the chance of any false "better".

**Why.** Each comparison has the level alpha / comparisons, evenly spent (Bonferroni); over any window of that many the levels add up to
alpha. Within a comparison there are several tests, and no correction is due. A candidate must pass the test against every champion that no
later one was shown to beat (an intersection-union test: Berger, Technometrics 24, 1982). Where the test against the one that is truly
best does not err, a promotion is not false, and that champion is struck off only by one that is better; so the best one is always
among those tested. One test must not err, and it errs with at most the comparison's level. "Better" is said of the oldest champion first,
and of each other only after that (tests in a fixed order: Maurer, Hothorn, Lehmacher 1995): the first of which it would be false must err.

**What is assumed.** Groups of queries that share a relevant document (tasks.core.statistics.clusters) are drawn independently from what is
asked, also later; new dev queries from the same. Within a group anything goes: it is one bet, on the sum of its differences, and its place
does not depend on its size (confirmation.shuffled). Of large groups a few queries do not count (at most one in twenty of all:
groups.Draws.most): the mean is the one so weighted. Values are of today's corpus and judgments: that one model is better than another is
taken to last. A candidate depends on the confirming queries only in that (1) weights of fusions were chosen on them: the level is then
divided by the number of systems that might have been candidates (`Evidence.looks`, union bound); (2) the champion was crowned on them,
where they are not new. Being crowned makes a champion look too good on them, and so its rivals too bad; it is assumed that it does not
make a rival look too good. That is natural where candidates are trained without regard to the champion, whose luck enters the two
comparisons with opposite signs, and can fail where they continue from it: new queries are therefore looked at first, and where the verdict
is reached on them alone, (2) is not needed. benchmarks/promotion.py simulates both. Not covered: people who tune parameters by the
confirming queries' figures.
**Not assumed**: independence of queries about one document, normality, a known spread, equal spreads, independence of candidates or weeks.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from flows.promotion import betting
from flows.promotion.groups import draws
from flows.promotion.records import Evidence, Promotion, Verdict
from flows.promotion.vetoes import find_vetoes
from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.statistics.confirmation import confirmation_queries

Values = Mapping[str, float]  # by query

MOST = 4  # standing champions, each of which is measured every time: from this many on, a candidate must be better than one of them


def guarantee(evidence: Evidence, measure: str, rule: Promotion) -> Verdict:
    """The verdict on queries that did not choose the candidate, new ones first.

    UserError if none is left, or the measure is not between 0 and 1.
    """
    order = order_queries(evidence.new, evidence.fresh, evidence.groups)
    if not order:
        problem = f"none of {len(evidence.new):,} judged queries is" if len(evidence.new) != 1 else "its only judged query is not"
        raise UserError(f"dev: {problem} left to confirm a choice; add some, or set rule: not_worse")
    level = rule.alpha / rule.comparisons / evidence.looks
    comparisons = {number: _compare_with(evidence, values, order, level=level, rule=rule) for number, values in evidence.old.items()}
    present, champion = next(iter(evidence.old.items()))
    differences = {query: evidence.new[query] - champion[query] for query in evidence.new}
    sample = draws(differences, order, evidence.groups)
    verdict = Verdict(
        False,
        "",
        measure,
        len(order),
        math.fsum(evidence.new[query] for query in order) / len(order),
        math.fsum(champion[query] for query in order) / len(order),
        comparisons[present].difference,
        comparisons[present].bound,
        rule=rule.rule,
        spread=sample.spread,
        dev=len(evidence.new),
        level=level,
        against={
            str(number): {"difference": comparison.difference, "bound": comparison.bound} for number, comparison in comparisons.items()
        },
        beaten=[number for number, _ in takewhile(lambda comparison: comparison[1].better, reversed(comparisons.items()))],
        vetoes=find_vetoes(differences, evidence.slices, rule, groups=evidence.groups) if rule.veto_rate else [],
        looks=evidence.looks,
        groups=sample.groups,
        most=sample.most,
    )
    failed = [number for number, comparison in comparisons.items() if not comparison.passes]
    too_many = len(comparisons) >= MOST and not verdict.beaten
    promoted = not (failed or too_many or verdict.vetoes)
    reasons = [f"{measure} {comparisons[present].summary} on dev"]
    if failed and failed[0] != present:
        reasons.append(f"against champion/{failed[0]} {comparisons[failed[0]].summary}")
    reasons[-1] += f" is {'not ' if failed else ''}> {-rule.margin:.4f}"
    if too_many and not failed:
        reasons.append(f"better than none of the {len(comparisons)} unbeaten champions")
    if promoted and verdict.beaten:
        reasons.append(f"better than {', '.join(f'champion/{number}' for number in verdict.beaten)}")
    reasons += [
        f"vetoed by {veto.group}: {veto.difference:+.4f} ({counted(veto.queries, 'queries')}, p {veto.p:.2g})" for veto in verdict.vetoes
    ]
    new = len(_all_new(evidence.new, evidence.fresh, evidence.groups).intersection(order))
    basis = f"guaranteed: {len(order)} of {len(evidence.new)} dev queries{sample.note}, {new} of them new"
    basis += f", {evidence.looks} systems tried on them" if evidence.looks > 1 else ""
    return replace(verdict, promoted=promoted, reason=f"{'; '.join(reasons)} ({basis})")


class Against(NamedTuple):
    """A candidate against one champion: whether it is shown to be no more than the margin worse, and better."""

    difference: float
    bound: float
    passes: bool
    better: bool

    @property
    def summary(self) -> str:
        return f"{self.difference:+.4f} (lower bound {self.bound:+.4f})"


def _compare_with(evidence: Evidence, old: Values, order: Sequence[str], *, level: float, rule: Promotion) -> Against:
    sample = draws({query: evidence.new[query] - old[query] for query in order}, order, evidence.groups)
    try:
        betting.check(sample.differences)
        bound = min(betting.lower_bound(sample.sums, level, sample.sizes), float(sample.differences.mean()))
    except ValueError as error:
        raise UserError(f"promotion.metric: {error}; choose a measure between 0 and 1, or set rule: not_worse") from None
    targets, mean = np.array([-rule.margin, 0.0]), float(sample.differences.mean())
    conclusions = betting.shows_more(sample.sums, targets, level, sizes=sample.sizes) & (mean > targets)
    return Against(mean, bound, *conclusions.tolist())


def order_queries(queries: Collection[str], fresh: Collection[str], groups: Mapping[str, str] | None = None) -> list[str]:
    """The queries that confirm, `fresh` ones first: if those decide, the ones on which the champion was crowned have no influence.

    A query that shares a relevant document with an older one is not fresh.
    """
    new = _all_new(queries, fresh, groups or {})
    return sorted(confirmation_queries(queries, groups or {}), key=lambda query: query not in new)


def _all_new(queries: Collection[str], fresh: Collection[str], groups: Mapping[str, str]) -> set[str]:
    """The `fresh` queries whose group has no older query."""
    new = set(fresh)
    older = {groups[query] for query in queries if query in groups and query not in new}
    return {query for query in new if query not in groups or groups[query] not in older}
