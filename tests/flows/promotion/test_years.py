"""A slice of benchmarks/promotion.py, and its years against `decide` and `standing` themselves."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flows.champions.champion import Champion
from flows.promotion.records import Evidence, Promotion
from flows.promotion.rule import decide
from flows.promotion.standing import standing
from tasks.core.statistics.confirmation import confirmation_queries, is_selection_query

RULE = Promotion(comparisons=5, veto_rate=0)


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "benchmarks/promotion.py"
    spec = importlib.util.spec_from_file_location("simulated", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(3))
def test_a_year_is_what_the_rule_decides_week_by_week(simulation: ModuleType, seed: int) -> None:
    """Champions with records, as a project has them, and values by query; the year's own draws, in its order."""
    queries, most, weeks = 300, simulation.MOST, 14
    world = simulation.World(0.3, queries)
    ids = [f"q{number}" for number in range(5000)]
    names = [*confirmation_queries(ids, {})[: queries - queries // 5], *(query for query in ids if is_selection_query(query, {}))][:queries]
    gains = np.random.default_rng(seed).normal(0.02, 0.03, weeks)

    def values(mean: float, luck: np.ndarray) -> dict[str, float]:
        ability = np.interp(mean, *simulation.abilities_by_mean(world))
        return dict(zip(names, world.scores(ability + simulation.DIFFICULTY * u + world.luck * luck).tolist(), strict=True))

    year = simulation.Years(world, np.random.default_rng(seed), 1)
    draw = np.random.default_rng(seed)
    lucks, u, _ = draw.normal(size=(1, most, queries)), draw.normal(size=(1, queries))[0], draw.normal(size=(1, queries))
    champions, scores, means = [Champion(1, "a", "first", "")], {1: values(simulation.START, lucks[0, 0])}, {1: simulation.START}
    promotions = 0
    for gain in gains:
        mean = means[champions[-1].number] + float(gain)
        luck = draw.normal(size=(1, queries))[0]
        stand = standing([Champion(**{**vars(champion), "digests": {"encoder": str(champion.number)}}) for champion in champions], "m")
        verdict = decide(Evidence(values(mean, luck), {champion.number: scores[champion.number] for champion in stand}), "m", RULE)
        crowned, _ = year.week(np.array([mean]), RULE)
        assert bool(crowned[0]) == verdict.promoted
        if verdict.promoted:
            number = champions[-1].number + 1
            record = {"rule": verdict.rule, "measure": "m", "against": verdict.against, "beaten": verdict.beaten}
            champions.append(Champion(number, "a", "promoted", "", comparison=record))
            scores[number], means[number] = values(mean, luck), mean
            promotions += 1
    assert promotions >= 2, "else nothing was shown"
    assert year.means[0, 0] == pytest.approx(means[champions[-1].number])


def test_few_false_promotions_in_a_year(simulation: ModuleType) -> None:
    """Years of 52 candidates, each a little more than the margin worse than the best so far, or equal; today's other rules beside it."""
    world, rules = simulation.World(0.35, 400), simulation.RULES
    worse = simulation.CANDIDATES["each .0101 worse than the best so far"]
    equal = simulation.CANDIDATES["each equal to the champion"]
    low, same = (simulation.years(world, rules["guaranteed"], candidate, count=40, seed=1) for candidate in (worse, equal))
    most = 0.05 + 3 * (0.05 * 0.95 / 40) ** 0.5
    assert low.below <= most and same.false <= most
    assert simulation.years(world, rules["not_worse"], worse, count=40, seed=1).below > 0.3
    assert simulation.years(world, rules["better"], equal, count=40, seed=1).false > 0.4
