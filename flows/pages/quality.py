"""Time to quality: the quality of each model of a chain on dev, and the seconds from the chains' common start until it was ready.

ANCE (arXiv:2007.00808) and STAR (arXiv:2104.08051, section 8.4.1 and Table 4) compare training times;
here, what serving needs counts too: encoding and indexing.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from flows.measuring.timing import Measured
from flows.parameters.needs import with_needs

Upstream = Mapping[str, Sequence[str]]  # of each stage


@dataclass(frozen=True)
class Reached:
    """A model: its quality on dev, and the seconds on the critical path until it could be served. `at_least`: a part was not measured."""

    model: str
    seconds: float
    quality: float
    at_least: bool = False


@dataclass(frozen=True)
class Chain:
    """Models that follow from one start, by time: rounds, each trained from the previous one, or query towers trained over one round."""

    name: str
    is_adore: bool
    points: tuple[Reached, ...]  # including the start

    @property
    def best(self) -> Reached:
        """The first model that reaches the chain's best quality."""
        return max(self.points, key=lambda point: (point.quality, -point.seconds))


@dataclass(frozen=True)
class Race:
    """The chains from one model. `unknown`: models some of whose stages did not run on this machine."""

    start: str
    chains: tuple[Chain, ...]
    unknown: tuple[str, ...]


def critical_path(targets: Sequence[str], upstream: Upstream, took: Mapping[str, Measured], *, free: Set[str]) -> Measured | None:
    """Seconds until all `targets` are made if each stage starts as soon as it can; `free` stages take no time. None if any is not timed."""
    known: dict[str, Measured | None] = {}

    def finish(stage: str) -> Measured | None:
        if stage in free:
            return Measured(0)
        if stage not in known:
            upstream_ends = [finish(other) for other in upstream[stage]]
            own_time = took.get(stage)
            if own_time is None or None in upstream_ends:
                known[stage] = None
            else:
                last = max((end.seconds for end in upstream_ends if end), default=0.0)
                known[stage] = Measured(last + own_time.seconds, own_time.at_least or any(end.at_least for end in upstream_ends if end))
        return known[stage]

    ends = [finish(target) for target in targets]
    if None in ends:
        return None
    return Measured(max((end.seconds for end in ends if end), default=0.0), any(end.at_least for end in ends if end))


def races(sections: Mapping[str, Any], upstream: Upstream, took: Mapping[str, Measured], *, quality: Mapping[str, float]) -> list[Race]:
    """The races from every round at which at least two chains start. `quality`: the report's metric on dev, by model."""
    rounds: Mapping[str, Any] = sections.get("rounds") or {}
    adores: Mapping[str, Any] = sections.get("adore") or {}
    return [
        race
        for start in rounds
        if len(paths(start, rounds, adores)) > 1 and (race := _race(start, rounds, adores, upstream=upstream, took=took, quality=quality))
    ]


def paths(start: str, rounds: Mapping[str, Any], adores: Mapping[str, Any]) -> list[tuple[list[str], bool]]:
    """The chains from `start`, without it: (models, whether they are query towers of one round). Untrained rounds do not count."""
    towers = [name for name, entry in adores.items() if entry["round"] == start]
    chains = [(towers, True)] if towers else []
    for name, entry in rounds.items():
        if entry["init"] == start and entry.get("steps") != 0:
            below = paths(name, rounds, adores)
            chains += [([name, *rest], False) for rest, _ in below] if below else [([name], False)]
    return chains


def _race(
    start: str,
    rounds: Mapping[str, Any],
    adores: Mapping[str, Any],
    *,
    upstream: Upstream,
    took: Mapping[str, Measured],
    quality: Mapping[str, float],
) -> Race | None:
    if f"train@{start}" not in upstream:
        return None
    free = with_needs(upstream, [f"train@{start}"])
    unknown: list[str] = []

    def reached(model: str) -> Reached | None:
        base = adores[model]["round"] if model in adores else model
        wanted = [f"adore@{model}" if model in adores else f"train@{model}", f"encode@{base}"]
        if (adores.get(model) or {}).get("index", "Flat") == "Flat":  # otherwise a tower is served with its own
            wanted.append(f"index@{base}")
        time = critical_path([stage for stage in wanted if stage in upstream], upstream, took, free=free)
        if time is None or model not in quality:
            unknown.append(model)
            return None
        return Reached(model, time.seconds, quality[model], time.at_least)

    first = reached(start)
    chains = []
    for models, towers in paths(start, rounds, adores):
        points = sorted(filter(None, [first, *map(reached, models)]), key=lambda point: point.seconds)
        if len(points) > 1:
            chains.append(Chain(label(models), towers, tuple(points)))
    return Race(start, tuple(chains), tuple(dict.fromkeys(unknown))) if chains or unknown else None


def label(models: Sequence[str]) -> str:
    """`ance1 to ance5`, or all names of a short chain."""
    return ", ".join(models) if len(models) < 3 else f"{models[0]} to {models[-1]}"


def verdicts(race: Race, metric: str) -> list[str]:
    """A line for each pair of a chain of query towers and one of rounds: whether the towers reach the rounds' best, and how much faster."""
    lines = []
    for adore in (chain for chain in race.chains if chain.is_adore):
        for chain in (chain for chain in race.chains if not chain.is_adore):
            best = chain.best
            first = next((point for point in adore.points if point.quality >= best.quality), None)
            goal = f"{metric} {best.quality:.4f}, the best of {chain.name} ({best.model}, after {seconds(best)})"
            if first is None:
                lines.append(f"{adore.name} does not reach {goal}; its best is {adore.best.quality:.4f}, after {seconds(adore.best)}")
            elif best.model == race.start:
                lines.append(f"{chain.name} does not improve on {race.start}, which it starts from ({metric} {best.quality:.4f})")
            else:
                ratio = best.seconds / first.seconds if first.seconds else float("inf")
                bound = "at most " if first.at_least else "at least " if best.at_least else ""
                speed = "" if first.at_least and best.at_least else f": {bound}{ratio:.1f} times as fast"
                lines.append(f"{adore.name} reaches {goal}, after {seconds(first)}{speed}")
    return lines


def seconds(point: Reached) -> str:
    """How long a model took, in words."""
    return f"{'at least ' if point.at_least else ''}{point.seconds:.0f} s"
