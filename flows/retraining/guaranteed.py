"""Rule `guaranteed`: what is promoted is not worse than the best champion so far, whatever else is promoted in a year.

**Claim.** Call a promotion false if the new model's mean is more than `margin` below that of the best champion since the chain began
(flows/retraining/standing.py), and a "better" false if the model is no better than the champion that it is said to beat. In any
`comparisons` comparisons in a row, the chance that anything of this happens is at most `alpha`.

**Why.** Each comparison has the level alpha / comparisons, evenly spent (Bonferroni); over any window of that many the levels add up to
alpha. Within a comparison there are several tests, and no correction is due. A candidate is tested against every champion that no later one
was shown to beat, and must pass each test (an intersection-union test: Berger, Technometrics 24, 1982). If the bound holds for the one
that is truly best, then a promotion is not false, and that champion is struck off only by one that is better than it; so the best one is
always among those tested, or the new champion is. Only that one bound must hold, and it fails with at most the comparison's level.

**What is assumed.** Queries are drawn independently from those that are asked, also later; new dev queries from the same ones. Values are
of today's corpus and judgments: that one model is better than another is taken to last. A candidate depends on the confirming queries
only in that (1) weights of fusions were chosen on them: the level is then divided by the number of systems that might have been candidates
(`Evidence.looks`, union bound); (2) the champion was crowned on them, where they are not new. Being crowned makes a champion look too good
on them, and its rivals too bad; it is assumed that it does not make a rival look too good. That is so where candidates are
trained without regard to the champion, and can fail where they continue from it: new queries are therefore looked at first, and where the
verdict is reached on them alone, (2) is not needed. Not covered: people who tune parameters by the confirming queries' figures.
**Not assumed**: normality, a known spread, equal spreads, independence of candidates or weeks.
"""

import math
from collections.abc import Collection, Mapping

import numpy as np

from flows.retraining import betting
from flows.retraining.promotion import Evidence, Promotion, Verdict, spread
from flows.retraining.vetoes import find_vetoes
from tasks.core.metrics.confirmation import confirming
from tasks.core.stage.errors import UserError

MOST = 4  # champions that none was shown to beat; with so many, a candidate must be better than one of them: each is measured every time


def guarantee(evidence: Evidence, measure: str, rule: Promotion) -> Verdict:
    """The verdict on queries that did not choose the candidate, new ones first.

    UserError if none is left, or the measure is not between 0 and 1.
    """
    order = in_order(evidence.new, evidence.fresh)
    if not order:
        raise UserError(f"dev: none of {len(evidence.new)} judged queries is left to confirm a choice; add some, or set rule: not_worse")
    now = next(iter(evidence.old))
    level = rule.alpha / rule.comparisons / evidence.looks
    against: dict[int, dict[str, float]] = {}
    lost, beaten = [], []
    for number, values in evidence.old.items():
        differences = np.asarray([evidence.new[query] - values[query] for query in order])
        try:
            against[number] = {"difference": float(differences.mean()), "bound": betting.lower_bound(differences, level)}
        except ValueError as error:
            raise UserError(f"{measure}: {error}; choose a measure between 0 and 1, or rule: not_worse") from None
        passes, better = betting.shows_more(differences, np.array([-rule.margin, 0.0]), level).tolist()
        lost += [] if passes else [number]
        beaten += [number] if better else []
    champion = evidence.old[now]
    all_differences = {query: evidence.new[query] - champion[query] for query in evidence.new}
    found = find_vetoes(all_differences, evidence.slices, rule) if rule.veto_rate else []
    too_many = len(against) >= MOST and not beaten
    reason = f"{measure} {_figures(against[now])}"
    if lost and lost[0] != now:
        reason += f"; against champion/{lost[0]} {_figures(against[lost[0]])}"
    reason += f" is {'not ' if lost else ''}> {-rule.margin:.4f}"
    if too_many and not lost:
        reason += f"; {len(against)} champions were never shown to be beaten, and it is shown better than none of them"
    elif beaten and not lost:
        reason += f"; better than {', '.join(f'champion/{number}' for number in beaten)}"
    for veto in found:
        reason += f"; vetoed by {veto.group}: {veto.difference:+.4f} ({veto.queries} queries, p {veto.p:.2g})"
    new = sum(query in evidence.fresh for query in order)
    sure = f"alpha {rule.alpha:g} over {rule.comparisons} comparisons" + (f" of {evidence.looks} systems" if evidence.looks > 1 else "")
    reason += f" (guaranteed, {len(order)} of {len(evidence.new)} dev queries, {new} of them new, {sure})"
    return Verdict(
        not lost and not found and not too_many,
        reason,
        measure,
        len(order),
        math.fsum(evidence.new[query] for query in order) / len(order),
        math.fsum(champion[query] for query in order) / len(order),
        against[now]["difference"],
        against[now]["bound"],
        rule=rule.rule,
        spread=spread([all_differences[query] for query in order]),
        dev=len(evidence.new),
        level=level,
        against={str(number): figures for number, figures in against.items()},
        beaten=beaten,
        vetoes=found,
        looks=evidence.looks,
    )


def in_order(queries: Collection[str], fresh: Collection[str]) -> list[str]:
    """The queries that confirm, `fresh` ones first: where they decide, those on which the champion was crowned have no say."""
    new = set(fresh)
    return sorted(confirming(queries), key=lambda query: query not in new)


def _figures(figures: Mapping[str, float]) -> str:
    return f"{figures['difference']:+.4f}, lower bound {figures['bound']:+.4f}"
