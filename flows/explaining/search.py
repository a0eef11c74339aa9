"""A noisy binary search: which of n batches made the measure drop, from noisy measurements of prefixes.

The posterior over the n places is updated with each measurement, and the next prefix is the one that halves it (Horstein, Sequential
transmission using noiseless feedback, 1963; Waeber, Frazier and Henderson, Bisection search with noisy responses, 2013). With little
noise that is plain bisection: log2(n) measurements. Near its end a noisy search measures a prefix again instead of trusting one figure.

A standard error over queries leaves out what a training's seed adds to all queries alike. LEAST_NOISE stands for that; if the seeds' noise
is larger, the search is too sure. In simulations of 16 batches (noise of 0.18 per query), of the answers at 0.95 or more 99.7 to 100% were
right when the seeds' standard deviation was 0 or a tenth of the drop, 98% at a fifth, and 83 to 86% at a third.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tasks.core.errors import UserError
from tasks.core.plurals import counted

TAILS = 5  # degrees of freedom of the noise: now and then a training is further off than its queries suggest
ALPHA, Z = 0.05, 1.645  # of a one-sided test, and its standard errors
LEAST_NOISE = 0.1  # of the whole drop: least noise of a difference between two trainings, as queries may show too little


@dataclass(frozen=True)
class Seen:
    """The difference between a prefix of `count` batches and no batch, and its error (`mean_and_error`)."""

    count: int
    difference: float
    error: float


@dataclass
class Search:
    """The search for the bad one of `batches`. `drop` (negative): the difference that all of them make, measured beforehand."""

    SURE: ClassVar[float] = 0.95  # probability at which the search ends
    batches: int
    drop: float
    seen: list[Seen] = field(default_factory=list)

    def posterior(self) -> list[float]:
        """The probability of each batch of being the bad one.

        Under "batch j is bad" the difference of a prefix of k batches is 0 for k < j, `drop` for k >= j, plus noise: Student's t with TAILS
        degrees of freedom, scaled by its standard error.
        """
        logs = [sum(self._log_likelihood(seen, bad) for seen in self.seen) for bad in range(1, self.batches + 1)]
        highest = max(logs)
        weights = [math.exp(log - highest) for log in logs]
        return [weight / sum(weights) for weight in weights]

    @property
    def best(self) -> int:
        """The batch that is most likely bad, counted from 1."""
        probabilities = self.posterior()
        return probabilities.index(max(probabilities)) + 1

    @property
    def sure(self) -> bool:
        return max(self.posterior()) >= self.SURE

    def next(self) -> int:
        """How many batches to measure next: the prefix that has the bad one with a probability nearest to a half."""
        probabilities = self.posterior()
        return min(range(1, self.batches), key=lambda count: (abs(math.fsum(probabilities[:count]) - 0.5), count))

    def add(self, count: int, difference: float, error: float) -> None:
        self.seen.append(Seen(count, difference, error))

    def _log_likelihood(self, measurement: Seen, bad: int) -> float:
        noise = max(measurement.error, LEAST_NOISE * abs(self.drop))
        mean = self.drop if measurement.count >= bad else 0.0
        return -(TAILS + 1) / 2 * math.log1p(((measurement.difference - mean) / noise) ** 2 / TAILS)


def mean_and_error(differences: Mapping[str, float], groups: Mapping[str, str], *, unseen: bool = True) -> tuple[float, float]:
    """The mean difference of two systems by query, and its error over groups of queries that share a relevant document.

    Z errors are the distance to the bound of a one-sided t-test. If all groups agree, others may merely not have been drawn: it is then
    that to the bound on what is unseen (flows.promotion.groups.unseen_bound, for groups of one size); without `unseen` it is 0. Raises
    UserError if there are too few queries, or too many in one group, to tell the noise.
    """
    import numpy as np
    from scipy import stats

    from tasks.core.statistics.clusters import LARGEST, group_numbers, mean_over_groups

    numbers = group_numbers(list(differences), groups)
    estimate = mean_over_groups(np.array(list(differences.values())), numbers)
    if not estimate.testable:
        shared = f"{np.bincount(numbers).max():,} of {counted(len(differences), 'queries')} that share relevant documents"
        found = shared if len(differences) > 1 else "one query"
        raise UserError(f"dev: found {found}, expected at most {LARGEST:.0%} in one group, to tell the noise; add dev queries")
    if unseen and not estimate.error:
        return estimate.mean, (1 + abs(estimate.mean)) * -math.expm1(math.log(ALPHA) / estimate.groups) / Z
    return estimate.mean, estimate.error * float(stats.t.ppf(1 - ALPHA, estimate.effective - 1)) / Z
