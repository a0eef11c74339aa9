"""The conclusion of a sweep: the best point on dev, whether by chance, whether it is at the grid's edge, and the command to adopt it."""

import copy
import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from flows.experiments.compare import Side, rows, side_of
from flows.experiments.draws import draws_of
from flows.experiments.store import PARAMS, Experiment, value_at
from flows.experiments.table import Layout, Setting
from flows.repository.lock import Lock
from tasks.core.errors import UserError, printable
from tasks.core.metrics.selection import best_of, best_system, is_tie, metric_of
from tasks.core.plurals import counted
from tasks.core.statistics.tested import tests_of

Check = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Tried:
    """A point of a sweep. Its repetitions share its `setting`; `assignments` and `keys` (of grid or points) leave out those of `repeat`."""

    setting: Setting
    assignments: Sequence[str]
    keys: Sequence[str]
    sections: Mapping[str, Any]
    experiment: Experiment | None  # None: not stored
    complete: bool = True  # whether this clone's cache has its metrics

    def values(self, metric: str) -> dict[str, float]:
        """Every model's value on dev."""
        metrics = self.experiment.metrics if self.experiment else {}
        found = {model: splits.get("dev", {}).get(metric, math.nan) for model, splits in metrics.items()}
        return {model: value for model, value in found.items() if math.isfinite(value)}


class Standing(NamedTuple):
    """The best system of a setting, and its average over the setting's runs."""

    runs: Sequence[Tried]
    model: str
    value: float

    @property
    def name(self) -> str:
        """`lr=0.001, window=[1, 20]`, or the name of a point that has one."""
        return ", ".join(value if key == "setting" else f"{key}={value}" for key, value in self.runs[0].setting)


def choose(tried: Sequence[Tried], layout: Layout | None, *, targets: Sequence[str], check: Check) -> list[str]:
    """Lines on the best setting by report.metric; none if fewer than two settings have a value, or points differ in the metric."""
    metrics = {metric_of(one.sections) for one in tried}
    metric = min(metrics)
    found = standings(tried, layout, metric=metric, targets=targets)
    if len(metrics) > 1 or len(found) < 2:
        return []
    heading = f"best on dev by {metric}{'' if all(one.experiment and one.complete for one in tried) else ', of the points stored so far'}"
    if all(is_tie(one.value, found[0].value) for one in found):
        return [f"{heading}: none, all {len(found)} settings have {found[0].value:.4f}"]
    first = _best(found)
    second = _best([one for one in found if one is not first])
    average = f", {layout.average if layout else 'mean'} of {len(first.runs)} runs" if len(first.runs) > 1 else ""
    lines = [
        f"{heading}: {first.name} with {first.value:.4f} ({first.model}{average}); next {second.name} with {second.value:.4f} "
        f"({second.model})",
        significance_note(first, second, metric=metric, layout=layout),
        *edge_notes(tried, first, [one for one in found if is_tie(one.value, first.value)], check=check),
        " ".join(["to adopt it: retemper run", *(f"--set {shlex.quote(one)}" for one in first.runs[0].assignments)]),
    ]
    return [printable(line) for line in lines]


def _best(found: Sequence[Standing]) -> Standing:
    """The best setting; among equals, the first in the sweep's order."""
    return found[best_of({place: one.value for place, one in enumerate(found)}, lambda place: place)]


def standings(tried: Sequence[Tried], layout: Layout | None, *, metric: str, targets: Sequence[str]) -> list[Standing]:
    """The settings that have a value, each with its best system, in the sweep's order.

    The systems of `layout` count, or without one, all that the settings change. With `targets`, only systems that every run has count: a
    run that does not reach the report leaves earlier measurements in dvc.lock.
    """
    runs: dict[Setting, list[Tried]] = defaultdict(list)
    for run in tried:
        if run.values(metric):
            runs[run.setting].append(run)
    measured = [run.values(metric).keys() for found in runs.values() for run in found]
    counted = set(layout.models) if layout else set[str]().union(*measured).intersection(*(measured if targets else []))
    means = {setting: _means(found, layout, metric=metric, counted=counted) for setting, found in runs.items()}
    changed = {model for model in counted if len({found.get(model) for found in means.values()}) > 1}
    if all(found.keys() & changed for found in means.values()):
        means = {setting: {model: value for model, value in found.items() if model in changed} for setting, found in means.items()}
    best = {setting: best_system(found, runs[setting][0].sections) for setting, found in means.items() if found}
    return [Standing(runs[setting], model, means[setting][model]) for setting, model in best.items()]


def _means(runs: Sequence[Tried], layout: Layout | None, *, metric: str, counted: set[str]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for model, value in run.values(metric).items():
            found[model].append(value)
    return {model: _middle(values, layout) for model, values in found.items() if model in counted}


def _middle(values: Sequence[float], layout: Layout | None) -> float:
    return layout.middle(values) if layout else statistics.fmean(values)


def significance_note(first: Standing, second: Standing, *, metric: str, layout: Layout | None) -> str:
    """A line on whether two settings differ, by the report's test over dev queries, with values averaged over each setting's runs."""
    try:
        sides = [_side(one, metric, layout) for one in (first, second)]
        if sides[0].values.keys() != sides[1].values.keys():
            return "the best two were measured on different dev queries, so their figures cannot be compared"
        test = tests_of(first.runs[0].sections, PARAMS)
        drawn = draws_of("dev", [side.stages for side in sides])
        row = rows(sides, test, split="dev", groups=drawn.groups)[0]
    except UserError as error:
        return f"the best two were not tested against each other: {error}"
    word = "differ" if row.p <= test.alpha else "do not differ"
    note = f"; {drawn.note}" if drawn.note and test.draws == "groups" else ""
    return f"the best two {word} significantly on dev (p = {row.p:.2g}, {counted(row.queries, 'queries')}){note}"


def _side(standing: Standing, metric: str, layout: Layout | None) -> Side:
    """The values by query of a setting, averaged over its runs, and the stages of the last of them."""
    found: dict[str, list[float]] = defaultdict(list)
    stages: Lock = {}
    for run in standing.runs:
        if run.experiment and standing.model in run.values(metric):
            side = side_of(f"{run.experiment.commit}:{standing.model}", run.sections, split="dev", measure=metric)
            stages = side.stages
            for query, value in side.values.items():
                found[query].append(value)
    return Side(standing.name, {query: _middle(values, layout) for query, values in found.items()}, stages, standing.model)


def edge_notes(tried: Sequence[Tried], best: Standing, level: Sequence[Standing], *, check: Check) -> Iterator[str]:
    """A line for each number of the best setting that is the largest or smallest tried, if `check` accepts values beyond it.

    There is no line if a setting that is `level` with the best has another value.
    """
    run = best.runs[0]
    for key in run.keys:
        value, values = value_at(run.sections, key), [number for one in tried if _is_number(number := value_at(one.sections, key))]
        if not _is_number(value) or key.endswith("seed") or len(set(values)) < 2 or value not in (min(values), max(values)):
            continue
        if any(value_at(one.runs[0].sections, key) != value for one in level):
            continue
        direction, word, comparative = (1, "largest", "larger") if value == max(values) else (-1, "smallest", "smaller")
        if _passes(
            run.sections, key, value + direction if isinstance(value, int) else math.nextafter(value, direction * math.inf), check=check
        ):
            yield f"{key}: the best value, {value}, is the {word} tried; try {comparative} ones"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _passes(sections: Mapping[str, Any], key: str, value: float, *, check: Check) -> bool:
    """Whether the parameters may have `value` at `key`."""
    beyond = copy.deepcopy(dict(sections))
    *parents, last = key.split(".")
    reduce(lambda node, name: node[name], parents, beyond)[last] = value
    try:
        check(beyond)
    except UserError:
        return False
    return True
