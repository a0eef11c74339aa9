"""The system that the best one is compared with."""

import numpy as np

from tasks.report.systems import System, opponents


def system(name: str, values: list[float]) -> System:
    return System(
        name, "", {"test": {"AP": float(np.mean(values))}}, {"test": [str(i) for i in range(len(values))]}, {"test": np.array(values)}
    )


def rival_of(chosen: System, *others: System, baselines: tuple[str, ...] = ("bm25",)) -> str | None:
    pair = opponents([*others, chosen], chosen, baselines, "AP", split="test", sections={})
    assert pair is None or pair[0] is chosen
    return pair[1].name if pair else None


def test_the_best_is_compared_with_the_first_baseline() -> None:
    assert rival_of(system("star", [1, 1]), system("bm25", [0, 1]), system("warmup", [1, 0.5])) == "bm25"


def test_a_baseline_that_is_best_is_compared_with_the_next_different_system() -> None:
    bm25, copy, worse = system("bm25", [1, 1]), system("hybrid", [1, 1]), system("star", [0, 1])
    assert rival_of(bm25, copy, worse) == "star"
    assert rival_of(bm25, copy) == "hybrid"
    assert rival_of(bm25) is None
