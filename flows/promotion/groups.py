"""Differences by dev query as independent draws: one for each group of queries that share a relevant document."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from flows.promotion import betting
from tasks.core.plurals import counted
from tasks.core.statistics.clusters import Floats, Numbers, by_group, design_effect, group_numbers
from tasks.core.statistics.paired_tests import no_spread

CAPPED = 0.05  # share of the queries that bets may leave out
NEAR = 3.0  # times the loss that may be unseen: a half-width of t below that is too small to be trusted


@dataclass(frozen=True)
class Draws:
    """`differences` of Q queries, and the number of each query's group, counted from 0 in the order in which groups are bet on."""

    differences: Floats
    numbers: Numbers

    @property
    def queries(self) -> int:
        return len(self.differences)

    @property
    def groups(self) -> int:
        return int(self.numbers.max()) + 1

    @property
    def most(self) -> int:
        """The most queries that a group counts as in a bet: the least number that loses no more than CAPPED of the queries.

        A bet must not risk everything, whatever the largest group does. If groups counted in full, one document with ten queries among a
        thousand with one would make every bet a tenth as large. The cap depends on sizes alone, so bets on the mean so weighted stay fair.
        """
        counts = np.bincount(self.numbers)
        return next(most for most in range(1, counts.max() + 1) if np.maximum(counts - most, 0).sum() <= CAPPED * self.queries)

    @property
    def sums(self) -> Floats:
        """The mean difference of each group [G], times `sizes`; just the differences if each query is its own group."""
        weighted_means: Floats = np.bincount(self.numbers, self.differences) / np.bincount(self.numbers) * self.sizes
        return weighted_means

    @property
    def sizes(self) -> Floats:
        """The size of each group [G], at most `most`, over `most`."""
        capped_sizes: Floats = np.minimum(np.bincount(self.numbers), self.most) / self.most
        return capped_sizes

    @property
    def means(self) -> Floats:
        """One value for each group [G] with the mean of the differences (clusters.by_group)."""
        return by_group(self.differences, self.numbers)

    @property
    def spread(self) -> float:
        """The standard deviation of `each`, with G - 1 in the denominator: over sqrt(G), the standard error of the mean."""
        each = self.means
        if len(each) < 2 or no_spread(each):
            return 0.0
        mean = math.fsum(each) / len(each)
        return math.sqrt(math.fsum((each - mean) ** 2) / (len(each) - 1))

    @property
    def note(self) -> str:
        """The number of groups and the design effect, in words; empty if each query is a group of its own."""
        if self.groups == self.queries:
            return ""
        effect = design_effect(self.differences, self.numbers)
        return f" in {counted(self.groups, 'groups')} that share relevant documents, design effect {effect:.1f}"


def draws(differences: Mapping[str, float], order: Sequence[str], groups: Mapping[str, str]) -> Draws:
    """The draws of the queries in `order`; a group takes the place of its first query."""
    return Draws(np.asarray([differences[query] for query in order]), group_numbers(order, groups))


def lower_bound(sample: Draws, alpha: float) -> float:
    """The one-sided 1 - alpha lower confidence bound of the mean difference, by Student's t over groups:

        L = mean(d) - t(1 - alpha, G - 1) * s / sqrt(G)        s: `spread` over the G groups; G = Q if no query shares a document

    L >= -margin exactly where a one-sided paired t-test rejects "the mean is below -margin" at level alpha
    (non-inferiority: Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010, section 1).

    If models are nearly alike, their spread says nothing about losses too rare to be seen. Without any spread, the bound is that of
    `unseen_bound`; if the t-test's half-width is less than NEAR times what may be unseen, it is the lesser of L and betting's bound. Both
    hold for differences in [-1, 1], whatever their distribution. For a measure outside that range, L is always the t-test's; without a
    spread nothing is shown, and the bound is -1, or the mean if that is less.
    """
    mean, spread = float(sample.differences.mean()), sample.spread
    bounded = bool(np.abs(sample.differences).max() <= 1)
    if not spread:
        return unseen_bound(mean, sample.sizes, alpha) if bounded else min(mean, -1.0)
    t_limit = t_bound(sample, alpha)
    if bounded and mean - t_limit < NEAR * (mean - unseen_bound(mean, sample.sizes, alpha)):
        return min(t_limit, betting.lower_bound(sample.sums, alpha, sample.sizes, bets=betting.BOLD))
    return t_limit


def t_bound(sample: Draws, alpha: float) -> float:
    """The t-test's bound alone; the mean without a spread."""
    mean = float(sample.differences.mean())
    return mean - float(stats.t.ppf(1 - alpha, sample.groups - 1)) * sample.spread / math.sqrt(sample.groups) if sample.spread else mean


def unseen_bound(value: float, sizes: Floats, alpha: float) -> float:
    """The 1 - alpha lower bound of the mean if every difference drawn is `value`: others, down to -1, may merely not have been drawn.

    With n groups of one size L = value - (1 + value) (1 - alpha^(1/n)): if the mean is m, all n differences are at least `value` with a
    chance of at most ((1 + m) / (1 + value))^n (Markov). This is the largest possible bet each time (flows.promotion.betting),
    1 / (1 + m); with groups of several sizes, L is the m at which its capital is 1 / alpha.
    """
    if sizes.min() == 1:
        return value - (1 + value) * -math.expm1(math.log(alpha) / len(sizes))
    edge = -1 + 1e-12
    if chance_of_none(value, edge, sizes) > alpha:
        return -1.0
    return float(optimize.brentq(lambda c: _log_chance(value, c, sizes) - math.log(alpha), edge, value))


def chance_of_none(value: float, c: float, sizes: Floats) -> float:
    """The greatest chance that no group differs from `value`, if the mean difference is at most c: one over the capital of that bet."""
    return math.exp(_log_chance(value, c, sizes))


def _log_chance(value: float, c: float, sizes: Floats) -> float:
    """The logarithm of `chance_of_none`, which itself may be too small for a float."""
    return -float(np.log1p(sizes * max(0.0, value - c) / (1 + c)).sum())
