"""The output of a sweep: one row per setting, with means or medians over its repetitions, and curves over one key."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup
from pydantic import Field

from flows.experiments.store import Experiment
from flows.process.display import text_table
from tasks.core.charts.page import page, table
from tasks.core.charts.vega import Line, Point, figure, legend, lines
from tasks.core.errors import UserError
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import SYSTEMS, best_of
from tasks.core.params.sections import Params, validate
from tasks.params import Parameters

Setting = tuple[tuple[str, str], ...]  # (column, value) of each key that the grid varies
BEST = "the best of its column"
Cells = dict[Setting, dict[tuple[str, str], list[float]]]  # by (model, measure): its values, one per repetition

EVALUATIONS = {"rounds": "evaluate"} | {section: f"evaluate_{section}" for section in SYSTEMS if section != "rounds"}


class Layout(Params):
    """Section `table` of a sweep file."""

    caption: str = Field(description="printed above")
    models: tuple[str, ...] = Field(min_length=1, description="whose metrics are columns")
    measures: tuple[str, ...] = Field(min_length=1, description="of evaluate.measures")
    references: tuple[str, ...] = Field((), description="models that no setting changes (bm25): a row and a level line each")
    curve: str | None = Field(None, description="the grid's key that is the x axis of a figure")
    average: Literal["mean", "median"] = Field("mean", description="of a setting's repetitions; one seed that fails moves no median")

    def middle(self, values: Sequence[float]) -> float:
        """The mean or median of a setting's repetitions."""
        return (statistics.fmean if self.average == "mean" else statistics.median)(values)


def evaluations(sections: Mapping[str, Any]) -> dict[str, str]:
    """Every model of the parameters `sections`, and the stage that measures it."""
    stages = {"bm25": "evaluate_bm25"}
    return stages | {name: f"{stage}@{name}" for section, stage in EVALUATIONS.items() for name in sections.get(section) or {}}


def measured_models(sections: Mapping[str, Any], targets: Sequence[str]) -> set[str]:
    """The models that a run with the parameters `sections` up to `targets` (none: the report) measures."""
    is_whole = not targets or "report" in {target.partition("@")[0] for target in targets}
    return {model for model, stage in evaluations(sections).items() if is_whole or stage in targets or stage.partition("@")[0] in targets}


def check_layout(layout: Layout, sections: Mapping[str, Any], targets: Sequence[str], *, where: str) -> None:
    """Raise UserError if a point with the parameters `sections`, run up to `targets` (none: the report), would leave a column empty."""
    stages, measured = evaluations(sections), measured_models(sections, targets)
    for key, models in (("models", layout.models), ("references", layout.references)):
        for model in models:
            if model not in stages:
                raise UserError(f"{where}: table.{key}: found {model!r}, expected one of {', '.join(stages)}")
            if model not in measured:
                raise UserError(
                    f"{where}: table.{key}: {model} is measured by {stages[model]}, which targets lack ({', '.join(targets)}); add it there"
                )
    evaluate: Any = Parameters.model_fields["evaluate"].annotation
    known = validate(evaluate, sections.get("evaluate") or {}, where, section="evaluate").measures
    for measure in layout.measures:
        if measure not in known:
            raise UserError(
                f"{where}: table.measures: found {measure!r}, expected one of its evaluate.measures: {', '.join(known)}; "
                "add it there (set: {evaluate.measures: [...]})"
            )


def collect(results: Sequence[tuple[Setting, Experiment]], layout: Layout, split: str) -> Cells:
    """The values of every setting, in the sweep's order, then those of the references, which no setting changes."""
    cells: Cells = {}
    for setting, experiment in results:
        row = cells.setdefault(setting, {})
        for model in layout.models:
            _add(row, experiment, model, layout=layout, split=split, column=model)
    for model in layout.references:
        row = {}
        for _, experiment in results:
            for column in layout.models:  # it is there to be compared with each
                _add(row, experiment, model, layout=layout, split=split, column=column)
        if row:
            cells[(("", model),)] = {key: [layout.middle(values)] for key, values in row.items()}
    return cells


def _add(row: dict[tuple[str, str], list[float]], experiment: Experiment, model: str, *, layout: Layout, split: str, column: str) -> None:
    for measure in layout.measures:
        value = experiment.metrics.get(model, {}).get(split, {}).get(measure)
        if value is not None:
            row.setdefault((column, measure), []).append(float(value))


def rows(cells: Cells, layout: Layout) -> tuple[list[str], list[list[str]]]:
    """Header and rows, with * at the best of a column. A repeated setting has `mean ± standard deviation` (of the sample), or
    `median (least to largest)`.

    Among equal averages, a reference is marked, because it is simpler, or else the first in the sweep's order.
    """
    columns = [(model, measure) for model in layout.models for measure in layout.measures]
    keys = list(dict.fromkeys(key for setting in cells for key, _ in setting if key)) or ["setting"]
    runs = [max((len(values) for values in row.values()), default=0) for row in cells.values()]
    repeated = max(runs, default=0) > 1
    order = {setting: ("" not in dict(setting), place) for place, setting in enumerate(cells)}
    means = {column: {setting: layout.middle(row[column]) for setting, row in cells.items() if column in row} for column in columns}
    best = {column: best_of(_higher_is_better(found, column[1]), order.__getitem__) for column, found in means.items() if found}
    header = [*keys, *(["runs"] if repeated else []), *(measure if len(layout.models) == 1 else f"{m} {measure}" for m, measure in columns)]
    body = []
    for (setting, row), count in zip(cells.items(), runs, strict=True):
        named: Mapping[str, str] = dict(setting)
        labels = [named.get(key, named.get("", "") if place == 0 else "") for place, key in enumerate(keys)]
        is_reference = "" in named
        figures_ = [cell(row.get(column, []), layout, setting == best.get(column)) for column in columns]
        body.append([*labels, *(["" if is_reference else str(count)] if repeated else []), *figures_])
    return header, body


def _higher_is_better(means: Mapping[Setting, float], measure: str) -> Mapping[Setting, float]:
    """`means`, negated if lower values of `measure` are better."""
    return {setting: -value for setting, value in means.items()} if lower_is_better(measure) else means


def cell(values: Sequence[float], layout: Layout, best: bool = False) -> str:
    """`0.3350 ± 0.0021*`, or `0.3350 (0.3301 to 0.3362)*`, with the star at the best; empty without values."""
    if not values:
        return ""
    spread = ""
    if len(values) > 1:
        spread = f" ± {statistics.stdev(values):.4f}" if layout.average == "mean" else f" ({min(values):.4f} to {max(values):.4f})"
    return f"{layout.middle(values):.4f}{spread}{'*' if best else ' '}"


def as_text(cells: Cells, layout: Layout, split: str) -> str:
    """The table of one split as text for a terminal."""
    return f"{layout.caption}, {split}\n{text_table(*rows(cells, layout))}\n*: {BEST}"


def write(cells: Mapping[str, Cells], layout: Layout, path: Path, *, notes: Sequence[str] = ()) -> None:
    """Write a page at `path` with the tables of all splits, figures if the layout has a `curve`, and `notes`. `cells`: by split."""
    from tasks.core.files import write_text

    parts: list[Markup] = []
    for split, split_cells in cells.items():
        parts.append(Markup('<p class="note">{}; *: {}</p>{}').format(split, BEST, table(*rows(split_cells, layout))))
        if layout.curve:
            parts += [
                curves(split_cells, layout, model, measure=measure, split=split) for model in layout.models for measure in layout.measures
            ]
    parts += [Markup('<p class="note">{}</p>').format(note) for note in notes]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page(layout.caption, Markup("").join(parts)))


def curves(cells: Cells, layout: Layout, model: str, *, measure: str, split: str) -> Markup:
    """A figure with one line per setting of the other keys, over the values of `curve` in the sweep's order, and standard deviations."""
    key = (layout.curve or "").rpartition(".")[2]
    axis = list(dict.fromkeys(value for setting in cells for name, value in setting if name in (key, layout.curve)))
    points: dict[str, list[Point]] = {}
    levels: list[Line] = []
    for setting, row in cells.items():
        values = row.get((model, measure), [])
        if not values:
            continue
        mean = layout.middle(values)
        if setting[0][0] == "":
            levels.append(Line(setting[0][1], [Point(place, mean) for place in axis], level=True))
            continue
        place = next((value for name, value in setting if name in (key, layout.curve)), None)
        if place is not None:
            name = ", ".join(value for other, value in setting if other not in (key, layout.curve)) or model
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            points.setdefault(name, []).append(Point(place, mean, spread, cell(values, layout).strip()))
    drawn = [*(Line(name, found) for name, found in points.items()), *levels]
    if not points:
        return Markup("")
    heading = f"{measure} of {model} on {split}"
    return legend([line.name for line in drawn]) + figure(lines(drawn, key.replace("_", " "), measure, height=260, dots=True), heading)
