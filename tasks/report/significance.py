"""Which differences are significant: paired two-sided tests, Holm-corrected; how large they are, and what the split could have shown.

One family per split: every tested pair of systems, each unordered pair once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasks.core.metrics.clusters import Numbers, design_effect, told
from tasks.core.metrics.paired_tests import holm, paired_t_test
from tasks.core.metrics.power import Effect, effect, too_few
from tasks.report.params import Report
from tasks.report.systems import System

PAPERS = {"dev": 0.01, "test": 0.05}  # levels at which the ADORE and LTRe papers mark a difference, without correction


@dataclass(frozen=True)
class Pair:
    """`system` against `baseline` on the same queries. Without an interval (one query, say) low and high are None.

    `groups` of queries are what is independent (report.draws): tests, intervals, and power go by them. `design_effect`: the variance of
    the mean difference over what it would be if all queries were. `marked`: p is below the papers' level for the split. `effect`: size and
    power at the report's alpha, before Holm's correction; None without variance. `warning`: a sentence where the queries are too few for
    the difference shown, otherwise empty.
    """

    system: str
    baseline: str
    queries: int
    groups: int
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
        """Whether there is anything to test with: one query, or one group of them, has no spread, and its p of 1 means nothing."""
        return self.groups > 1

    def verdict(self, p_value: Callable[[float], str]) -> str:
        """`significant, p 0.0123`, or why nothing can be said."""
        if not self.testable:
            return f"{'one query' if self.queries == 1 else 'one group of queries'}, so nothing can be tested"
        return f"{'' if self.significant else 'not '}significant, p {p_value(self.p_holm)}"


def compare(systems: Sequence[System], split: str, params: Report, groups: Mapping[str, str]) -> list[Pair]:
    """Every system against every baseline that is in the table, on `split`; two baselines are compared once, the later as the system.

    `groups`: of queries, by the documents they share (clusters.connected)."""
    present = {system.name: system for system in systems if split in system.values}
    order = list(present)
    met = [name for name in order if name in params.baselines]
    pairs = [(present[system], present[baseline]) for system in order for baseline in met if _meets(system, baseline, met, order)]
    numbers = [params.drawn(system.queries[split], groups) for system, _ in pairs]
    p_values = [
        params.p(system.values[split], baseline.values[split], drawn) for (system, baseline), drawn in zip(pairs, numbers, strict=True)
    ]
    return [
        _pair(system, baseline, split, p=p, p_holm=p_holm, alpha=params.alpha, numbers=drawn)
        for (system, baseline), drawn, p, p_holm in zip(pairs, numbers, p_values, holm(p_values), strict=True)
    ]


def _meets(system: str, baseline: str, baselines: list[str], order: list[str]) -> bool:
    return order.index(system) > order.index(baseline) if system in baselines else True


def _pair(system: System, baseline: System, split: str, *, p: float, p_holm: float, alpha: float, numbers: Numbers) -> Pair:
    first, second = system.values[split], baseline.values[split]
    _, low, high = paired_t_test(first, second, alpha, numbers)
    difference, size = float((first - second).mean()), effect(first - second, alpha, numbers)
    significant = p_holm <= alpha
    warning = "" if significant else too_few(f"{split}, {system.name} against {baseline.name}", len(first), difference, size)
    return Pair(
        system=system.name,
        baseline=baseline.name,
        queries=len(first),
        groups=int(numbers.max()) + 1,
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


def shared(pair: Pair | None) -> str:
    """What it means for a pair that some of its queries share relevant documents; empty where none do, or none are taken to.

    Of one query, that nothing can be tested.
    """
    if pair is None or pair.groups == pair.queries > 1:
        return ""
    return f"{pair.system} against {pair.baseline}: {told(pair.queries, pair.groups, pair.design_effect)}"


def headline(pairs: Sequence[Pair], duel: tuple[System, System] | None) -> Pair | None:
    """The pair of the best model and the system it is compared with, if it was tested."""
    named = {system.name for system in duel or ()}
    return next((pair for pair in pairs if {pair.system, pair.baseline} == named), None)
