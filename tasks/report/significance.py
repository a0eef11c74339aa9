"""Which differences are significant: paired two-sided t-tests, Holm-corrected.

One family per split: every tested pair of systems, each unordered pair once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.metrics.paired_tests import holm, paired_t_test
from tasks.report.systems import System


@dataclass(frozen=True)
class Pair:
    """`system` against `baseline` on the same queries. Without an interval (one query, say) low and high are None."""

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


def compare(systems: Sequence[System], baselines: Sequence[str], split: str, alpha: float) -> list[Pair]:
    """Every system against every baseline that is in the table, on `split`; two baselines are compared once, the later as the system."""
    present = {system.name: system for system in systems if split in system.values}
    order = list(present)
    met = [name for name in order if name in baselines]
    pairs = [(system, baseline) for system in order for baseline in met if _meets(system, baseline, met, order)]
    tests = [paired_t_test(present[system].values[split], present[baseline].values[split], alpha) for system, baseline in pairs]
    corrected = holm([p for p, _, _ in tests])
    return [
        _pair(present[system], present[baseline], split, test, p_holm, alpha)
        for (system, baseline), test, p_holm in zip(pairs, tests, corrected, strict=True)
    ]


def _meets(system: str, baseline: str, baselines: list[str], order: list[str]) -> bool:
    return order.index(system) > order.index(baseline) if system in baselines else True


def _pair(
    system: System, baseline: System, split: str, test: tuple[float, float | None, float | None], p_holm: float, alpha: float
) -> Pair:
    first, second = system.values[split], baseline.values[split]
    p, low, high = test
    means = float(first.mean()), float(second.mean())
    return Pair(system.name, baseline.name, len(first), *means, float((first - second).mean()), low, high, p, p_holm, p_holm <= alpha)
