"""Years of weekly retrainings, simulated: what each promotion rule lets through, and what it lets pass that is good.

    python benchmarks/promotion.py [--years 1000] [--queries 1000] [--spread 0.25] [--seed 1] [--only year tries vetoes needed]

A query has a difficulty u, a model an ability a and a luck e of its own with each query, all normal; the rank of the one relevant
document is ceil(exp(-(a + u + e))), and the score its nDCG@10: bounded, in steps, with many ties, as real scores are. True means are exact
(the normal distribution's), the ability is set to the wanted mean, and the luck to the wanted spread of differences. Dev queries are either
the same all year (so is the champion's luck, which got it crowned), or drawn again each week, as the usual arithmetic has it. `follows`:
candidates inherit the champion's luck and drift all year in one direction, the worst case for reused queries.

`guaranteed` is flows/promotion/betting.py on four fifths of the queries, with the champions of flows/promotion/standing.py; the t-tests
have all queries. tests/flows/promotion/test_years.py holds the years against `decide` itself.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from flows.promotion import betting
from flows.promotion.guaranteed import MOST
from flows.promotion.records import Promotion
from flows.promotion.vetoes import find_vetoes
from tasks.core.statistics.confirmation import ONE_IN

Floats = npt.NDArray[np.float64]
RANKS = np.arange(1, 11)
GAINS = 1 / np.log2(RANKS + 1)
WEEKS = 52
DIFFICULTY = 2.0  # standard deviation of u
START = 0.55  # the first champion's mean
RULES = {name: Promotion(rule=name) for name in ("guaranteed", "not_worse", "better")}


@dataclass(frozen=True)
class World:
    """How scores come about: standard deviation of the luck, queries, whether they are the same all year, how much luck is inherited."""

    luck: float
    queries: int
    same: bool = True
    follows: float = 0.0

    def ability(self, mean: float) -> float:
        """The ability whose true mean is `mean`: the mean is a sum over ranks of what a rank gains on the next, times P(rank or better)."""
        width, steps = math.hypot(DIFFICULTY, self.luck), GAINS - np.append(GAINS[1:], 0)
        return float(optimize.brentq(lambda a: steps @ stats.norm.cdf((a + np.log(RANKS)) / width) - mean, -20, 20))

    def scores(self, latent: Floats) -> Floats:
        """nDCG@10 by a + u + e."""
        ranks = np.ceil(np.exp(-np.maximum(latent, -3.0)))
        return np.where(ranks > RANKS[-1], 0.0, 1 / np.log2(1 + np.maximum(ranks, 1)))


def world(spread: float, queries: int, *, same: bool = True, follows: float = 0.0) -> World:
    """The one in which two equal models' differences have that spread, if neither follows the other."""
    draw = np.random.default_rng(0)
    u, e, f = draw.normal(size=(3, 200_000))

    def excess(luck: float) -> float:
        trial = World(luck, queries)
        a = trial.ability(START)
        return float((trial.scores(a + DIFFICULTY * u + luck * e) - trial.scores(a + DIFFICULTY * u + luck * f)).std()) - spread

    return World(float(optimize.brentq(excess, 0.01, 3.0, xtol=1e-3)), queries, same, follows)


@dataclass
class Years:
    """The champions of many years side by side [Y]: true means, and those that stand, their luck [Y, S, Q] in the same order."""

    setting: World
    draw: np.random.Generator
    count: int
    means: Floats = field(init=False)  # [Y, S], NaN where fewer stand; column 0 is the current champion
    lucks: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.means = np.full((self.count, MOST), np.nan)
        self.means[:, 0] = self.best = np.full(self.count, START)
        self.lucks = self.draw.normal(size=(self.count, MOST, self.setting.queries))
        self.u = self.draw.normal(size=(self.count, self.setting.queries))
        self.direction = self.draw.normal(size=(self.count, self.setting.queries))
        self.first = np.full(self.count, START)

    def week(self, candidate: Floats, rule: Promotion) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Whether a candidate of mean [Y] is promoted, and whether falsely said to be better than one that stands; the years go on."""
        setting, rows = self.setting, np.arange(self.count)
        luck = self.draw.normal(size=self.direction.shape)
        if setting.follows:
            luck = setting.follows * self.lucks[:, 0] + math.sqrt(1 - setting.follows**2) * (0.7 * self.direction + math.sqrt(0.51) * luck)
        if not setting.same:
            self.u = self.draw.normal(size=self.u.shape)
            self.lucks = self.draw.normal(size=self.lucks.shape)
        candidate_scores = self._scores(candidate, luck)
        stand = ~np.isnan(self.means)
        passes, better = np.ones_like(stand), np.zeros_like(stand)
        for place in range(MOST if rule.rule == "guaranteed" else 1):
            active = np.flatnonzero(stand[:, place] & passes.all(axis=1))
            if len(active):
                champion_scores = self._scores(self.means[active, place], self.lucks[active, place], active)
                passes[active, place], better[active, place] = compared(candidate_scores[active] - champion_scores, rule)
        better = stand & np.logical_and.accumulate((better | ~stand)[:, ::-1], axis=1)[:, ::-1]  # the oldest first
        full = stand.all(axis=1) & ~better.any(axis=1)
        crowned = passes.all(axis=1) & ~(full & (rule.rule == "guaranteed"))
        false = (better & crowned[:, None] & (candidate[:, None] <= self.means)).any(axis=1)
        if rule.rule == "guaranteed":
            for row in np.flatnonzero(crowned):
                left = np.flatnonzero(stand[row] & ~better[row])
                self.means[row, 1:] = [*self.means[row, left], *[np.nan] * (MOST - 1 - len(left))]
                self.lucks[row, 1 : 1 + len(left)] = self.lucks[row, left]
        self.means[crowned, 0], self.lucks[crowned, 0] = candidate[crowned], luck[rows[crowned]]
        self.best = np.maximum(self.best, self.means[:, 0])
        return crowned, false

    def _scores(self, means: Floats, lucks: Floats, some: npt.NDArray[np.int64] | None = None) -> Floats:
        abilities = np.interp(means, *abilities_by_mean(self.setting))
        return self.setting.scores(abilities[:, None] + DIFFICULTY * (self.u if some is None else self.u[some]) + self.setting.luck * lucks)


@lru_cache
def abilities_by_mean(setting: World) -> tuple[Floats, Floats]:
    """A grid of means, and the abilities that have them."""
    grid = np.linspace(0.02, 0.98, 1000)
    return grid, np.array([setting.ability(mean) for mean in grid])


def compared(differences: Floats, rule: Promotion) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether each row of differences [Y, Q] passes the rule, and whether it is said to be better."""
    if rule.rule == "guaranteed":
        confirm = differences[:, : differences.shape[1] - differences.shape[1] // ONE_IN]
        level = rule.alpha / rule.comparisons
        passes, better = betting.shows_more(confirm, np.array([[-rule.margin], [0.0]]), level)
        return passes, better
    count = differences.shape[1]
    bounds = differences.mean(axis=1) - stats.t.ppf(1 - rule.alpha, count - 1) * differences.std(axis=1, ddof=1) / math.sqrt(count)
    return (bounds >= -rule.margin if rule.rule == "not_worse" else bounds > 0), bounds > 0


@dataclass(frozen=True)
class Year:
    """Of many years: shares with a false promotion, with a false "better", mean change of the true mean, mean promotions."""

    below: float
    false: float
    change: float
    promotions: float


def years(setting: World, rule: Promotion, candidate: Callable[[Years], Floats], *, count: int, seed: int, block: int = 250) -> Year:
    """`count` years of WEEKS weeks, each with a candidate of the means that `candidate` gives for the years as they are."""
    below, false, change, promotions = [], [], [], 0
    for start in range(0, count, block):
        block_years = Years(setting, np.random.default_rng((seed, start)), min(block, count - start))
        fell, wrong = np.zeros(block_years.count, bool), np.zeros(block_years.count, bool)
        for _ in range(WEEKS):
            crowned, is_false = block_years.week(candidate(block_years), rule)
            promotions += int(crowned.sum())
            fell |= block_years.means[:, 0] < block_years.best - rule.margin - 1e-12
            wrong |= is_false
        below, false, change = [*below, fell], [*false, wrong], [*change, block_years.means[:, 0] - block_years.first]
    return Year(*(float(np.concatenate(part).mean()) for part in (below, false, change)), promotions / count)


CANDIDATES: dict[str, Callable[[Years], Floats]] = {
    "each .005 worse than the champion": lambda now: now.means[:, 0] - 0.005,
    "each .0101 worse than the best so far": lambda now: now.best - 0.0101,
    "each equal to the champion": lambda now: now.means[:, 0],
    "mixed: normal, mean -.005, sd .01": lambda now: now.means[:, 0] + now.draw.normal(-0.005, 0.01, now.count),
}


def tries(setting: World, rule: Promotion, *, gain: float, count: int, seed: int) -> list[float]:
    """Shares of years in which one of the first 1, 2, 3 candidates, all truly `gain` better, is promoted."""
    crowned_blocks = []
    for start in range(0, count, 100):
        block_years = Years(setting, np.random.default_rng((seed, start)), min(100, count - start))
        crowned = np.zeros((block_years.count, 3), bool)
        for week in range(3):
            crowned[:, week] = block_years.week(np.full(block_years.count, START + gain), rule)[0] | crowned[:, : week + 1].any(axis=1)
            block_years.means[:, 0] = START  # the next try meets the same champion
        crowned_blocks.append(crowned)
    return [float(share) for share in np.concatenate(crowned_blocks).mean(axis=0)]


def vetoed(setting: World, *, gain: float, loss: float, size: float, count: int, seed: int) -> tuple[float, float]:
    """Shares of comparisons in which the group that loses vetoes, and in which any other group does.

    The groups of a data set like SQuAD: four by length, nine by question word, three sources; the loss is in a group of a fourth dimension.
    Groups by chance overlap the one that loses: a veto of one whose own loss is within the margin counts as false, of another as right.
    """
    right = wrong = 0
    for number in range(count):
        draw = np.random.default_rng((seed, number))
        u, e, f = draw.normal(size=(3, setting.queries))
        low = np.zeros(setting.queries, bool)
        low[: round(size * setting.queries)] = loss != 0
        abilities = np.where(low, setting.ability(START - loss), setting.ability(START + gain))
        new, old = (
            setting.scores(abilities + DIFFICULTY * u + setting.luck * e),
            setting.scores(setting.ability(START) + DIFFICULTY * u + setting.luck * f),
        )
        names = [f"{n}" for n in range(setting.queries)]
        kinds = {"words": [0.25] * 4, "question word": [0.45, 0.12, 0.1, 0.08, *[0.05] * 5], "source": [0.6, 0.3, 0.1]}
        slices = {}
        for kind, shares in kinds.items():
            labels = draw.choice(len(shares), setting.queries, p=shares)
            slices |= {f"{kind} {label}": [names[place] for place in np.flatnonzero(labels == label)] for label in range(len(shares))}
        if loss:
            slices["planted"] = names[: round(size * setting.queries)]
        vetoes = find_vetoes(dict(zip(names, (new - old).tolist(), strict=True)), slices, RULES["guaranteed"])
        right += any(veto.group == "planted" for veto in vetoes)
        truth = dict(zip(names, np.where(low, -loss, gain), strict=True))
        false = [veto for veto in vetoes if np.mean([truth[name] for name in slices[veto.group]]) >= -RULES["guaranteed"].margin]
        wrong += bool(false)
    return right / count, wrong / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--spread", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["year", "tries", "vetoes", "needed"])
    args = parser.parse_args()
    worlds = {
        "other queries each week": world(args.spread, args.queries, same=False),
        "the same all year": world(args.spread, args.queries),
        "the same, candidates follow": world(args.spread, args.queries, follows=0.7),
    }
    if "year" in args.only:
        print("| candidates | dev queries | rule | ever > .01 below the best | any false better | change in a year | promotions |")
        print("|---|---|---|---:|---:|---:|---:|")
        for label, candidate in CANDIDATES.items():
            for kind, setting in worlds.items():
                for name, rule in RULES.items():
                    f = years(setting, rule, candidate, count=args.years, seed=args.seed)
                    false_share = "" if name == "not_worse" else f"{f.false:.1%}"  # which claims no more than that
                    cells = f"{f.below:.1%} | {false_share} | {f.change:+.4f} | {f.promotions:.2f}"
                    print(f"| {label} | {kind} | {name} | {cells} |", flush=True)
    if "tries" in args.only:
        print("\n| gain | dev queries | rule | promoted at once | within 2 | within 3 |\n|---|---|---|---:|---:|---:|")
        for gain in (0.0, 0.01, 0.02, 0.03):
            for kind in ("other queries each week", "the same all year"):
                for name, rule in RULES.items():
                    shares = tries(worlds[kind], rule, gain=gain, count=args.years, seed=args.seed)
                    print(f"| {gain:+.2f} | {kind} | {name} | {' | '.join(f'{share:.1%}' for share in shares)} |", flush=True)
    if "needed" in args.only:
        print("\n| rule | dev queries | within 3, other queries | within 3, the same |\n|---|---:|---:|---:|")
        for queries in (800, 1000, 1200, 1400, 1700, 2000):
            worlds_by_week = [world(args.spread, queries, same=same) for same in (False, True)]
            shares = [tries(variant, RULES["guaranteed"], gain=0.02, count=args.years, seed=args.seed)[2] for variant in worlds_by_week]
            print(f"| guaranteed | {queries:,} | {' | '.join(f'{share:.1%}' for share in shares)} |", flush=True)
    if "vetoes" in args.only:
        print("\n| dev queries | planted group | its loss | comparisons | vetoed | false vetoes |\n|---:|---:|---:|---:|---:|---:|")
        cases = [(args.queries, 0.05, loss) for loss in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)]
        cases += [(args.queries, 0.25, 0.05), (args.queries, 0.25, 0.1), (2_500, 0.05, 0.1), (10_000, 0.05, 0.05), (14_000, 0.05, 0.05)]
        for queries, size, loss in cases:
            count = args.years if queries <= args.queries else args.years // 5
            right, wrong = vetoed(world(args.spread, queries), gain=0.0, loss=loss, size=size, count=count, seed=args.seed)
            print(f"| {queries:,} | {size:.0%} | {loss:.2f} | {count:,} | {right:.1%} | {wrong:.1%} |", flush=True)


if __name__ == "__main__":
    main()
