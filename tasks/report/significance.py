"""Significance of differences: paired two-sided tests, Holm-corrected; the sizes of differences, and the power of the split to show them.

Each split is one family of tests: every tested pair of systems, each unordered pair once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.core.statistics.clusters import Numbers, describe_groups, design_effect
from tasks.core.statistics.paired_tests import holm, paired_t_test
from tasks.core.statistics.power import Effect, effect, power_warning
from tasks.report.params import Report
from tasks.report.systems import System

PAPERS = {"dev": 0.01, "test": 0.05}  # levels at which STAR and ADORE's Table 2 marks a difference, without correction


@dataclass(frozen=True)
class Pair:
    """`system` against `baseline` on the same queries. Without an interval (for one query, say), low and high are None.

    `groups`: the number of independent groups of queries (report.draws), which tests, intervals, and power are based on; `largest_group`:
    the queries of the largest. `design_effect`: the variance of the mean difference, relative to that if all queries were independent.
    `marked`: p is below the papers' level for the split. `effect`: size and power at the report's alpha, before Holm's correction; None
    without variance. `warning`: a sentence if there are too few queries for the difference shown, otherwise empty.
    """

    system: str
    baseline: str
    queries: int
    groups: int
    largest_group: int
    design_effect: float
    mean: float
    baseline_mean: float
    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    significant: bool
    marked: bool
    effect: Effect | None
    warning: str

    @property
    def testable(self) -> bool:
        """Whether there is more than one group of queries. A single group has no variance, so its p of 1 means nothing."""
        return self.groups > 1

    def verdict(self, p_value: Callable[[float], str]) -> str:
        """`significant, p 0.0123`, or why nothing can be tested."""
        if not self.testable:
            return f"{'one query' if self.queries == 1 else 'one group of queries'}, so nothing can be tested"
        return f"{'' if self.significant else 'not '}significant, p {p_value(self.p_holm)}"


def compare(systems: Sequence[System], split: str, params: Report, groups: Mapping[str, str]) -> list[Pair]:
    """Compare every system with every baseline in the table, on `split`. Two baselines are compared once, with the later as the system.

    `groups`: the group of each query; queries of a group share relevant documents (clusters.connected)."""
    present = {system.name: system for system in systems if split in system.values}
    order = list(present)
    baselines = [name for name in order if name in params.baselines]
    pairs = [
        (present[system], present[baseline])
        for system in order
        for baseline in baselines
        if system not in baselines or order.index(system) > order.index(baseline)
    ]
    numbers = [params.drawn(system.queries[split], groups) for system, _ in pairs]
    p_values = [
        params.p(system.values[split], baseline.values[split], drawn) for (system, baseline), drawn in zip(pairs, numbers, strict=True)
    ]
    return [
        _pair(system, baseline, split, p=p, p_holm=p_holm, alpha=params.alpha, numbers=drawn)
        for (system, baseline), drawn, p, p_holm in zip(pairs, numbers, p_values, holm(p_values), strict=True)
    ]


def _pair(system: System, baseline: System, split: str, *, p: float, p_holm: float, alpha: float, numbers: Numbers) -> Pair:
    first, second = system.values[split], baseline.values[split]
    _, low, high = paired_t_test(first, second, alpha, numbers)
    difference, size = float((first - second).mean()), effect(first - second, alpha, numbers)
    significant = p_holm <= alpha
    warning = "" if significant else power_warning(f"{split}, {system.name} against {baseline.name}", len(first), difference, size)
    return Pair(
        system=system.name,
        baseline=baseline.name,
        queries=len(first),
        groups=int(numbers.max()) + 1,
        largest_group=int(np.bincount(numbers).max()),
        design_effect=design_effect(first - second, numbers),
        mean=float(first.mean()),
        baseline_mean=float(second.mean()),
        difference=difference,
        low=low,
        high=high,
        p=p,
        p_holm=p_holm,
        significant=significant,
        marked=p < PAPERS[split],
        effect=size,
        warning=warning,
    )


def shared_documents_note(pair: Pair | None) -> str:
    """A sentence on the effect of queries that share relevant documents, for the tests of a pair.

    Empty if all queries are treated as independent. For a single query, it says that nothing can be tested.
    """
    if pair is None or pair.groups == pair.queries > 1:
        return ""
    groups = describe_groups(pair.queries, pair.groups, pair.design_effect, largest=pair.largest_group)
    return f"{pair.system} against {pair.baseline}: {groups}"


def headline(pairs: Sequence[Pair], duel: tuple[System, System] | None) -> Pair | None:
    """The pair of the best model and the system it is compared with, if it was tested."""
    duel_names = {system.name for system in duel or ()}
    return next((pair for pair in pairs if {pair.system, pair.baseline} == duel_names), None)
