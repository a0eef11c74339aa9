"""Which differences are significant: paired two-sided tests, Holm-corrected; how large they are, and what the split could have shown.

One family per split: every tested pair of systems, each unordered pair once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.metrics.paired_tests import holm, paired_t_test
from tasks.core.metrics.power import Effect, effect, too_few
from tasks.report.params import Report
from tasks.report.systems import System

PAPERS = {"dev": 0.01, "test": 0.05}  # levels at which the ADORE and LTRe papers mark a difference, without correction


@dataclass(frozen=True)
class Pair:
    """`system` against `baseline` on the same queries. Without an interval (one query, say) low and high are None.

    `marked`: p is below the papers' level for the split. `effect`: size and power at the report's alpha, before Holm's correction;
    None without variance. `warning`: a sentence where the queries are too few for the difference shown, otherwise empty.
    """

    system: str
    baseline: str
    queries: int
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


def compare(systems: Sequence[System], split: str, params: Report) -> list[Pair]:
    """Every system against every baseline that is in the table, on `split`; two baselines are compared once, the later as the system."""
    present = {system.name: system for system in systems if split in system.values}
    order = list(present)
    met = [name for name in order if name in params.baselines]
    pairs = [(present[system], present[baseline]) for system in order for baseline in met if _meets(system, baseline, met, order)]
    p_values = [params.p(system.values[split], baseline.values[split]) for system, baseline in pairs]
    return [
        _pair(system, baseline, split, p=p, p_holm=p_holm, alpha=params.alpha)
        for (system, baseline), p, p_holm in zip(pairs, p_values, holm(p_values), strict=True)
    ]


def _meets(system: str, baseline: str, baselines: list[str], order: list[str]) -> bool:
    return order.index(system) > order.index(baseline) if system in baselines else True


def _pair(system: System, baseline: System, split: str, *, p: float, p_holm: float, alpha: float) -> Pair:
    first, second = system.values[split], baseline.values[split]
    _, low, high = paired_t_test(first, second, alpha)
    difference, size = float((first - second).mean()), effect(first - second, alpha)
    significant = p_holm <= alpha
    warning = "" if significant else too_few(f"{split}, {system.name} against {baseline.name}", len(first), difference, size)
    return Pair(
        system=system.name,
        baseline=baseline.name,
        queries=len(first),
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


def headline(pairs: Sequence[Pair], duel: tuple[System, System] | None) -> Pair | None:
    """The pair of the best model and the system it is compared with, if it was tested."""
    named = {system.name for system in duel or ()}
    return next((pair for pair in pairs if {pair.system, pair.baseline} == named), None)
