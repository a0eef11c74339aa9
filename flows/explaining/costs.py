"""Estimate the cost of counterfactual runs: how many there are, how much of them is in the cache, and recorded times of the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.explaining.runs import TRAININGS
from flows.explaining.shapley import Coalition
from flows.explaining.sides import DATA, Factor, Side, code_files
from flows.process.display import clock
from flows.repository.lock import Lock, parameters, tracked
from flows.repository.worktree import SOURCE
from flows.storage import makings
from flows.storage.cache import cache_folder
from flows.team.lineage import ancestors
from tasks.core.plurals import counted
from tasks.core.stage.frozen import CODE
from tasks.core.stage.references import frozen_references, without_digests

DRAWS = (*TRAININGS, "mix")  # stages whose seed the repetitions change


@dataclass(frozen=True)
class Estimate:
    """`runs` are left to do, with `trainings` trainings; all their stages take `seconds` by recorded times. `known` runs are done.

    `untimed`: how many of these stages have no recorded time.
    """

    runs: int
    known: int
    trainings: int
    seconds: float
    untimed: int

    @property
    def line(self) -> str:
        known = f" ({self.known} more known)" if self.known else ""
        unknown = f" (not recorded: {counted(self.untimed, 'stages')})" if self.untimed else ""
        return f"runs: {self.runs}{known}; trainings: {self.trainings} at most; by recorded times: {clock(self.seconds)}{unknown}"


def recorded_seconds(*locks: Lock) -> dict[str, float]:
    """Seconds that each stage took, here or at a colleague's, by the cache's records; later locks take precedence."""
    entries = {stage: entry for lock in locks for stage, entry in lock.items()}
    return {stage: float(record.get("seconds", 0)) for stage, record in makings.of_stages(cache_folder(), entries).items()}


def estimate(
    sides: tuple[Side, Side],
    factors: Sequence[Factor],
    wanted: Iterable[tuple[Coalition, int]],
    *,
    known: int,
    direct: Callable[[Coalition], bool],
    trained: Callable[[Coalition], str],
    seconds: Mapping[str, float],
) -> Estimate:
    """Estimate the cost of the `wanted` coalitions and repetitions (0: with the original seeds).

    A stage runs once for each choice among the factors that it, or what it reads, depends on; if all of them are of one side, it has run
    already. `direct`: whether the run that trains a coalition also measures it; `trained`: the stage that makes its model.
    """
    old, new = sides
    reads = relevant_factors(old, new, factors)
    drawn = {stage for side in sides for stage in side.stages if any(map(_draws(side), ancestors(side.stages, stage)))}
    model = {factor.name for factor in factors if factor.model}
    todo: dict[tuple[str, Coalition, int, bool], str] = {}
    count = 0
    for coalition, repetition in wanted:
        count += 1
        made_by = trained(coalition)
        order = (new, old) if model <= coalition else (old, new)
        side = next(one for one in order if made_by in one.stages)  # a model of one name may be of another kind on each side
        making = set(ancestors(side.stages, made_by))
        for stage in side.stages:
            beside = stage not in making and not direct(coalition)  # measured in a tree of its own
            depends = reads[made_by] if beside else reads[stage]
            relevant, again = coalition & depends, repetition if stage in drawn else 0
            ran = not again and not beside and ((not relevant and stage in old.stages) or (relevant == depends and stage in new.stages))
            if not ran:
                todo[stage, relevant, again, beside] = stage
    trainings = sum(stage.partition("@")[0] in TRAININGS for stage in todo.values())
    times = [seconds[stage] for stage in todo.values() if stage in seconds]
    return Estimate(count, known, trainings, sum(times), len(todo) - len(times))


def relevant_factors(old: Side, new: Side, factors: Sequence[Factor]) -> dict[str, frozenset[str]]:
    """By stage, the names of the factors that it, or a stage before it, depends on; a stage of only one side depends on all."""
    everything = frozenset(factor.name for factor in factors)
    direct = {}
    for stage in (*old.stages, *new.stages):
        old_entry, new_entry = old.stages.get(stage), new.stages.get(stage)
        names = everything
        if old_entry is not None and new_entry is not None:
            names = frozenset(
                factor.name
                for factor in factors
                if _touches(factor, old_entry, new_entry) or (factor.code and _differs_in_graph(old, new, stage))
            )
        direct[stage] = names
    return {
        stage: frozenset[str]().union(
            *(direct[above] for side in (old, new) if stage in side.stages for above in ancestors(side.stages, stage))
        )
        for stage in direct
    }


def _touches(factor: Factor, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    sections = {key.partition(".")[0] for key in _differing(without_digests(parameters(old)), without_digests(parameters(new)))}
    sources = {key.partition(".")[0] for key in _differing(tracked(SOURCE, old), tracked(SOURCE, new))}
    old_references, new_references = (frozen_references(dict(parameters(entry))) for entry in (old, new))
    code = {name for name in old_references.keys() & new_references.keys() if old_references[name] != new_references[name]}
    code = code or _differing(tracked(CODE, old), tracked(CODE, new)) or _differing(code_files(old), code_files(new))
    data = (factor.data or factor.batches) and sources.intersection(DATA)
    return bool(data or (sections | sources).intersection(factor.sections) or (factor.code and code))


def _differs_in_graph(old: Side, new: Side, stage: str) -> bool:
    name = stage.partition("@")[0]
    return old.graph.get(name) != new.graph.get(name)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    return {key for key in {*old, *new} if old.get(key) != new.get(key)}


def _draws(side: Side) -> Callable[[str], bool]:
    """A function that tells whether a stage draws by a seed; a round of no steps does not."""

    def draws(stage: str) -> bool:
        kind, _, name = stage.partition("@")
        entry = parameters(side.stages[stage]).get(f"rounds.{name}") or {}
        return kind in DRAWS and entry.get("steps") != 0

    return draws
