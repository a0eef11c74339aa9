"""Differences by dev query as independent draws: one for each group of queries that share a relevant document."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from flows.promotion import betting
from tasks.core.plurals import counted
from tasks.core.statistics.clusters import Floats, Mean, Numbers, design_effect, group_numbers, mean_over_groups

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
    def estimate(self) -> Mean:
        """The mean difference and its standard error."""
        return mean_over_groups(self.differences, self.numbers)

    @property
    def is_constant(self) -> bool:
        """Whether there is one group, or all groups have the same mean difference but for rounding."""
        return self.groups == 1 or (self.estimate.testable and not self.estimate.error)

    @property
    def spread(self) -> float:
        """The standard error of the mean times sqrt(G): if each query is a group, the standard deviation of the differences."""
        return self.estimate.error * math.sqrt(self.groups)

    @property
    def note(self) -> str:
        """The number of groups and the design effect, or the size of a group that is too large to test, in words; else empty."""
        if self.groups == self.queries:
            return ""
        if not self.estimate.testable and self.groups > 1:
            return f", of which {np.bincount(self.numbers).max():,} share relevant documents"
        effect = design_effect(self.differences, self.numbers)
        return f" in {counted(self.groups, 'groups')} that share relevant documents, design effect {effect:.1f}"


def draws(differences: Mapping[str, float], order: Sequence[str], groups: Mapping[str, str]) -> Draws:
    """The draws of the queries in `order`; a group takes the place of its first query."""
    return Draws(np.asarray([differences[query] for query in order]), group_numbers(order, groups))


def lower_bound(sample: Draws, alpha: float) -> float:
    """The one-sided 1 - alpha lower confidence bound of the mean difference, by Student's t over groups:

        L = mean(d) - t(1 - alpha, D - 1) * e        e, D: error and effective number of groups (clusters.mean_over_groups)

    L >= -margin exactly where a one-sided paired t-test rejects "the mean is below -margin" at level alpha
    (non-inferiority: Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010, section 1).

    If models are nearly alike, their spread says nothing about losses too rare to be seen. Without any spread, the bound is that of
    `unseen_bound`; if the t-test's half-width is less than NEAR times what may be unseen, it is the lesser of L and betting's bound. Both
    hold for differences in [-1, 1], whatever their distribution. For a measure outside that range, L is always the t-test's; without a
    spread, or if one group has nearly all queries, nothing is shown, and the bound is -1, or the mean if that is less.
    """
    mean, estimate = float(sample.differences.mean()), sample.estimate
    bounded = bool(np.abs(sample.differences).max() <= 1)
    if sample.is_constant:
        return unseen_bound(mean, sample.sizes, alpha) if bounded else min(mean, -1.0)
    if not estimate.testable:
        return betting.lower_bound(sample.sums, alpha, sample.sizes, bets=betting.BOLD) if bounded else min(mean, -1.0)
    t_limit = t_bound(sample, alpha)
    if bounded and mean - t_limit < NEAR * (mean - unseen_bound(mean, sample.sizes, alpha)):
        return min(t_limit, betting.lower_bound(sample.sums, alpha, sample.sizes, bets=betting.BOLD))
    return t_limit


def t_bound(sample: Draws, alpha: float) -> float:
    """The t-test's bound alone: the mean without a spread, -inf if one group has nearly all queries."""
    estimate = sample.estimate
    if not (estimate.testable or sample.is_constant):
        return -math.inf
    return estimate.mean - float(stats.t.ppf(1 - alpha, estimate.effective - 1)) * estimate.error if estimate.error else estimate.mean


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
