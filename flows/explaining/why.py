"""`retemper why OLD NEW`: the difference between two models on the newer dev, split over data, parameters, code, and seed."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

from flows.explaining import costs, shapley
from flows.explaining.data import Inbox
from flows.explaining.plan import Plan, make_plan
from flows.explaining.runs import Bench, Refused, refuse_unmeasured, training
from flows.explaining.shapley import Coalition, Group
from flows.explaining.sides import read_side, refuse_made_dev
from flows.process import locks
from flows.process.display import Display, text_table
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from tasks.core.errors import UserError, printable
from tasks.core.plurals import counted

FOLDER = Path(".retemper/why")
LEVEL = 0.95


@dataclass(frozen=True)
class Row:
    """A factor's part of the difference, with its confidence interval over seeds (LEVEL) and the standard error of sampled orders."""

    factor: str
    contribution: float
    low: float | None
    high: float | None
    sampling: float
    differs: Sequence[str]


@dataclass(frozen=True)
class Explained:
    """The difference between two sides: `rows` add up to it."""

    old: str
    new: str
    model: str
    measure: str
    queries: int  # 0 if both figures were recorded before
    old_value: float
    new_value: float
    difference: float
    seeds: int
    rows: Sequence[Row]
    notes: Sequence[str]


def why(old: str, new: str, *, split: Sequence[str], seeds: int, measure: str | None, dry_run: bool, as_json: bool) -> int:
    """Print how much each factor contributes to the difference between two revisions' models. Return the exit status.

    `split`: what to split further, data or parameters. `seeds`: the number of other seeds with which each configuration is trained, in
    addition to the two sides with their own; 1: train all with the original seeds only.
    """
    sides = read_side(old), read_side(new)
    side_notes = [side.note for side in sides if side.note]
    measure = measure or sides[1].measure
    processes, display = Processes(), Display()
    say = (lambda _: None) if as_json else display.line
    with (
        stopping_on_signals(processes),
        locks.hold_run_lock(FOLDER / "why.lock"),
        Bench(FOLDER, measure, processes, show=(lambda *_: None) if as_json else display.output) as bench,
    ):
        plan = make_plan(*sides, split, inbox=Inbox())
        refuse_unmeasured(measure, plan.yardstick.sections)
        work = Work(plan, bench, measure, seeds=seeds if plan.factors else 1, say=say)
        work.refuse_invalid()
        refuse_made_dev(*sides, direct=all(map(plan.is_direct, shapley.needed_coalitions(work.groups))))
        estimate = work.estimate()
        for note in side_notes:
            say(printable(note))
        say(f"{old} -> {new}: factors: {', '.join(map(work.name, work.groups)) or 'none'}; seeds: {work.seeds}; {estimate.line}")
        if dry_run:
            bench.close(keep_found=True)
            if as_json:
                notes = [*side_notes, *work.notes]
                print(json.dumps({"factors": [work.name(group) for group in work.groups], **asdict(estimate), "notes": notes}, indent=2))
            return 0
        try:
            explained = work.explain()
            if as_json:  # otherwise they have been said
                explained = replace(explained, notes=(*side_notes, *explained.notes))
        except RunFailed as failed:
            print_problems([failed.problem])
            return 1
        bench.close()
        shutil.rmtree(FOLDER / "data", ignore_errors=True)
    print(json.dumps(asdict(explained), indent=2, ensure_ascii=False) if as_json else printable(text(explained)))
    return 0


class Work:
    """Measures what the Shapley values need. If a configuration is refused, two factors are merged into one."""

    def __init__(self, plan: Plan, bench: Bench, measure: str, *, seeds: int, say: Callable[[str], None]) -> None:
        self.plan, self.bench, self.measure, self.seeds, self.say = plan, bench, measure, seeds, say
        self.groups: list[Group] = [frozenset({factor.name}) for factor in plan.factors]
        self.notes: list[str] = []

    def name(self, group: Group) -> str:
        return " + ".join(factor.name for factor in self.plan.factors if factor.name in group)

    def refuse_invalid(self) -> None:
        """Merge factors until the code of every configuration accepts its parameters."""
        known: dict[Coalition, str] = {}
        while True:
            unchecked = [coalition for coalition in shapley.needed_coalitions(self.groups) if coalition not in known]
            configurations = {str(number): self.plan.configuration(coalition) for number, coalition in enumerate(unchecked)}
            refusals = self.bench.refusals(configurations) if unchecked else {}
            known |= {coalition: refusals.get(str(number), "") for number, coalition in enumerate(unchecked)}
            refused = {coalition: known[coalition] for coalition in shapley.needed_coalitions(self.groups) if known[coalition]}
            if not refused:
                return
            self._merge(refused)

    def rounds(self) -> list[tuple[int, list[Coalition]]]:
        """Repetitions, and the coalitions of each. Repetition 0 has the original seeds; with several seeds, it has only the two sides."""
        wanted = shapley.needed_coalitions(self.groups)
        if self.seeds == 1:
            return [(0, wanted)]
        return [(0, list(dict.fromkeys((wanted[0], wanted[-1])))), *((repetition, wanted) for repetition in range(1, self.seeds + 1))]

    def estimate(self) -> costs.Estimate:
        wanted = [(coalition, repetition) for repetition, coalitions in self.rounds() for coalition in coalitions]
        remaining = [run for run in wanted if not self._known(*run)]
        plan = self.plan
        return costs.estimate(
            (plan.old, plan.new),
            plan.factors,
            remaining,
            known=len(wanted) - len(remaining),
            direct=plan.is_direct,
            trained=lambda coalition: _trained(plan, coalition),
            seconds=costs.recorded_seconds(plan.old.stages, plan.new.stages),
        )

    def explain(self) -> Explained:
        """Measure all needed configurations, and split the difference."""
        while True:
            values: dict[tuple[Coalition, int], Fraction] = {}
            refused: dict[Coalition, str] = {}
            queries, refused_in = 0, 0
            runs = ((repetition, coalition) for repetition, coalitions in self.rounds() for coalition in coalitions)
            for repetition, coalition in runs:
                if refused and repetition > refused_in:
                    break
                mean = self._recorded(coalition, repetition)
                if mean is None:
                    configuration, label = self.plan.configuration(coalition, repetition), self._label(coalition, repetition)
                    try:
                        measured = self.bench.measured(configuration, self.plan.yardstick, label)
                    except Refused as problem:
                        refused[coalition], refused_in = str(problem), repetition
                        continue
                    mean, queries = measured.mean, len(measured.values)
                values[coalition, repetition] = Fraction(mean)
            if not refused:
                break
            self._merge(refused)  # only now, since all refused ones together show which two belong together
        differs = {factor.name: factor.differs for factor in self.plan.factors}
        named = {group: (self.name(group), [line for name in differs if name in group for line in differs[name]]) for group in self.groups}
        rows = split(named, values, self.seeds)
        wanted = shapley.needed_coalitions(self.groups)
        first, last = (float(values[side, 0]) for side in (wanted[0], wanted[-1]))
        old, new = self.plan.old, self.plan.new
        model = new.model if old.model == new.model else f"{old.model} and {new.model}"
        difference = float(Fraction(last) - Fraction(first))
        return Explained(old.name, new.name, model, self.measure, queries, first, last, difference, self.seeds, rows, tuple(self.notes))

    def _merge(self, refused: Mapping[Coalition, str]) -> None:
        for coalition, side in ((frozenset[str](), self.plan.old), (self.plan.names, self.plan.new)):
            if coalition in refused:
                raise UserError(f"{side.name}: cannot be measured: {refused[coalition]}")
        former = self.groups
        self.groups = shapley.merge_pair(former, refused)
        merged = next(group for group in self.groups if group not in former)
        names = [self.name(group) for group in former if group < merged]
        reason = next(iter(refused.values()))
        note = f"{' of one side cannot be combined with '.join(names)} of the other: {reason}; they count as one factor"
        self.notes.append(note)
        self.say(note)

    def _recorded(self, coalition: Coalition, repetition: int) -> float | None:
        """The figure of a side's own run, if the coalition is that side and is measured in the same way; else None."""
        side = self.plan.new if coalition == self.plan.names else None if coalition else self.plan.old
        if side is None or repetition or not self.plan.is_direct(coalition):
            return None
        value = side.recorded.get("dev", {}).get(self.measure)
        return None if value is None else float(value)

    def _known(self, coalition: Coalition, repetition: int) -> bool:
        return (
            self._recorded(coalition, repetition) is not None
            or self.bench.known(self.plan.configuration(coalition, repetition), self.plan.yardstick) is not None
        )

    def _label(self, coalition: Coalition, repetition: int) -> str:
        new = [self.name(group) for group in self.groups if group <= coalition]
        description = f"new: {', '.join(new)}" if new else "all as it was"
        return f"{description}, {f'seed {repetition} of {self.seeds}' if repetition else 'seeds as they are'}"


def split(
    named: Mapping[Group, tuple[str, Sequence[str]]], values: Mapping[tuple[Coalition, int], Fraction], seeds: int
) -> tuple[Row, ...]:
    """One row per group (its name, and what differs), and one for the seed; they add up to the difference with the original seeds.

    `values` [coalition, repetition]. A group's contribution is the mean of its Shapley values over the repetitions, with Student's
    interval of that mean. With several `seeds`, repetition 0, with the original seeds, does not count: a side may have been chosen for its
    luck, so they are not a draw like the others. The seed's contribution is what they add to the mean difference.
    """
    groups = list(named)
    fresh = sorted({again for _, again in values} - {0}) if seeds > 1 else [0]
    each_time = [{one: mean for (one, again), mean in values.items() if again == repetition} for repetition in fresh]
    shares_each_time = [shapley.shares(groups, worth.__getitem__) for worth in each_time]
    rows = []
    total = Fraction()
    for group, (name, differs) in named.items():
        contributions = [shares[group].value for shares in shares_each_time]
        mean = sum(contributions, Fraction()) / len(fresh)
        total += mean
        half = half_width(contributions)
        # The orders are the same each time, so their errors go together.
        sampling = sum(shares[group].sampling for shares in shares_each_time) / len(fresh)
        low, high = (None, None) if half is None else (float(mean) - half, float(mean) + half)
        rows.append(Row(name, float(mean), low, high, sampling, tuple(differs)))
    all_names = frozenset[str]().union(*groups)
    seed_part = values[all_names, 0] - values[frozenset(), 0] - total
    if seeds > 1:
        rows.append(Row("seed", float(seed_part), None, None, 0.0, (f"the original seeds, against the mean of {len(fresh)} new ones",)))
    return tuple(rows)


def half_width(values: Sequence[Fraction]) -> float | None:
    """Half of Student's interval (LEVEL) of the mean: t(n - 1) s / sqrt(n); None for one value."""
    count = len(values)
    if count < 2:
        return None
    from scipy import stats

    return float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * shapley.standard_error(values)


def text(explained: Explained) -> str:
    """The table: what each factor contributes, and the total."""
    sampled = any(row.sampling for row in explained.rows)
    interval = f"{100 * LEVEL:.0f}% interval"
    header = ["factor", "contribution", interval, *(["sampling error"] if sampled else []), "what differs"]
    rows = []
    for row in explained.rows:
        interval = "" if row.low is None or row.high is None else f"{row.low:+.4f} to {row.high:+.4f}"
        error = [f"{row.sampling:.4f}" if row.sampling else ""] if sampled else []
        rows.append([row.factor, f"{row.contribution:+.4f}", interval, *error, "; ".join(row.differs)])
    blank = [""] if sampled else []
    rows.append(["total", f"{explained.difference:+.4f}", "", *blank, f"{explained.old_value:.4f} -> {explained.new_value:.4f}"])
    queries = f" ({counted(explained.queries, 'queries')})" if explained.queries else ""
    lines = [
        f"{explained.measure} of {explained.model} on dev of {explained.new}{queries}, {explained.old} -> {explained.new}",
        text_table(header, rows),
    ]
    if not explained.rows or all(row.factor == "seed" for row in explained.rows):
        lines.append("nothing recorded differs in how the two were made")
    if explained.seeds == 1 and explained.rows:
        lines.append("trained once each: how much of this is seed noise is unknown; --seeds 3 shows it")
    return "\n".join([*lines, *explained.notes])


def _trained(plan: Plan, coalition: Coalition) -> str:
    """The stage that makes a coalition's model, or that measures it if it needs no training."""
    try:
        return training(plan.configuration(coalition))
    except Refused:
        model = {factor.name for factor in plan.factors if factor.model}
        return (plan.new if model <= coalition else plan.old).evaluation
