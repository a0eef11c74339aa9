"""The power of the next comparison, shown before training, from the spread of the last comparison's differences."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from flows.promotion import betting
from flows.promotion.groups import NEAR
from flows.promotion.records import Promotion
from tasks.core.statistics.confirmation import ONE_IN
from tasks.core.statistics.power import noncentral_t, smallest_count

GAIN = 0.02  # the gain whose chance is told, in units of the measure
WANTED = 0.9
MOST = 10**7  # queries that are tried, at most
STEPS, PATHS = 400, 4000


def foresee(last: Mapping[str, Any], rule: Promotion, measure: str) -> str:
    """One line on the chance of a promotion, from the last comparison's record (a Verdict); empty if it has no spread of `measure`."""
    spread, queries = float(last.get("spread") or 0), int(last.get("queries") or 0)
    if not spread or queries < 2 or last.get("measure", measure) != measure:
        return ""
    group_size = queries / (last.get("groups") or queries)  # queries in a group of those that share a relevant document
    uneven = max(1.0, int(last.get("most", 1)) / group_size)
    share = 1 - 1 / ONE_IN if rule.rule == "guaranteed" else 1.0
    if last.get("rule", rule.rule) != rule.rule:  # `queries` are those of the rule before
        queries = round(int(last["dev"]) * share)

    def promotion_chance(gain: float, count: int = round(queries / group_size)) -> float:
        return pass_chance(gain, count, spread=spread, rule=rule, looks=int(last.get("looks", 1)), uneven=uneven)

    needed = smallest_count(lambda count: promotion_chance(GAIN, count) >= WANTED, MOST)
    needed_text = f"{'about' if needed else 'more than'} {math.ceil((needed or MOST) * group_size / share):,} dev queries are"
    confirm = f" ({queries:,} confirm)" if share < 1 else ""
    confirm += f" in groups of {group_size:.1f} that share relevant documents" if group_size > 1 else ""
    dev = int(last.get("dev") or round(queries / share))
    line = (
        f"promotion ({rule.rule}): with {dev:,} dev queries{confirm} and the last comparison's spread of {spread:.3f}, "
        f"a gain of {GAIN:g} is promoted with a chance of about {promotion_chance(GAIN):.0%}, "
        f"an equal model with {promotion_chance(0.0):.1%}, "
        f"a loss of {max(rule.margin, GAIN / 2):g} with {promotion_chance(-max(rule.margin, GAIN / 2)):.1%}"
    )
    return f"{line}; {needed_text} needed to promote that gain with a chance of {WANTED:.0%}"


def pass_chance(gain: float, queries: int, *, spread: float, rule: Promotion, looks: int = 1, uneven: float = 1.0) -> float:
    """The chance that a model truly `gain` better than the champion passes the test against it.

    `queries`: how many confirm, or how many groups of them. `spread`: as in Verdict. `uneven`: size of the largest group over the mean
    size. `looks`: as in Evidence.

    guaranteed: simulated by PATHS Brownian motions, which approximate the sum of the differences, under the bets of flows.promotion.betting
    with a known spread. not_worse, better: the power of a one-sided t-test, by the noncentral t; if it needs betting as well
    (flows.promotion.groups), no more than the power of the bets.
    """
    target = 0.0 if rule.rule == "better" else -rule.margin
    shift = (gain - target) * math.sqrt(queries) / spread
    log_target, largest_bet = math.log(rule.comparisons * looks / rule.alpha), betting.MOST_OF_IT * spread * math.sqrt(queries) / uneven
    t_power = 1.0
    if rule.rule != "guaranteed":
        critical = float(stats.t.ppf(1 - rule.alpha, queries - 1))
        t_power = 1 - noncentral_t(critical, queries - 1, shift)
        if critical * spread / math.sqrt(queries) >= NEAR * (1 - rule.alpha ** (uneven / queries)):
            return t_power
        log_target, largest_bet = -math.log(rule.alpha), largest_bet * betting.BOLD.most / betting.MOST_OF_IT
    steps = np.random.default_rng(0).normal(shift / STEPS, 1 / math.sqrt(STEPS), (STEPS, PATHS))
    to_win = np.full(PATHS, log_target)
    for place, step in enumerate(steps):
        bet = np.minimum(np.sqrt(2 * to_win / (1 - place / STEPS)), largest_bet)
        to_win = np.maximum(to_win - (bet * step - bet**2 / (2 * STEPS)), 0.0)
    return min(t_power, float((to_win == 0).mean()))
