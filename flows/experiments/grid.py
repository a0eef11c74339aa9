"""The file of a sweep: the points of a grid, each with its assignments, its name, and its row in the table."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.experiments import choice, store, table
from flows.parameters import edit
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml, validate

NAME = re.compile(r"(?!.*(\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9_.-]*")  # what git takes as the last part of a reference


@dataclass(frozen=True)
class Point:
    """One experiment to run: its name, its `--set` assignments, and its row (`setting`) in the table, shared with its repetitions."""

    name: str
    assignments: tuple[str, ...]
    setting: table.Setting = ()
    own: tuple[str, ...] = ()  # the keys of grid, points, and repeat that define it
    repeated: tuple[str, ...] = ()  # those of repeat

    def tried(self, sections: Mapping[str, Any], experiment: store.Experiment | None) -> choice.Tried:
        """The point with its parameters and its result, as one run of its setting."""
        without_repeat = [one for one in self.assignments if one.partition("=")[0] not in self.repeated]
        return choice.Tried(self.setting, without_repeat, [key for key in self.own if key not in self.repeated], sections, experiment)


def read_points(file: Path, edits: Sequence[str] = ()) -> list[Point]:
    """The points of a sweep: the product of `grid`, then `points`, each once for every combination of `repeat`.

    A point's assignments are the sections of the file `sections`, `set`, its own, and `edits`, in this order. Steps of `edits` take the
    place of epochs of `set`. Raises UserError if the file is not a sweep, or two points have the same name.
    """
    value = _read(file)
    last = {key.strip(): edit.strip() for key, _, edit in (one.partition("=") for one in edits)}
    stepped = {
        f"{key.removesuffix('steps')}epochs" for key, edit in last.items() if key.endswith(".steps") and edit not in ("", "null", "~")
    }
    always = {**_sections(file, value.get("sections")), **{key: one for key, one in value.get("set", {}).items() if key not in stepped}}
    grid, repeats = _lists(value.get("grid", {})), list(_product(_lists(value.get("repeat", {}))))
    points = []
    for own, name, setting in [
        *((values, _name(values), tuple(_named(values))) for values in (_product(grid) if grid else ())),
        *((dict(assigned), str(name), (("setting", str(name)),)) for name, assigned in value.get("points", {}).items()),
    ]:
        for repeat in repeats:
            if overlap := own.keys() & repeat.keys():
                raise UserError(f"{file}: repeat.{min(overlap)}: {name} sets it too; remove it from one of them")
            full_name = f"{name[:70]}-{_name(repeat)}"[:100] if repeat else name
            points.append(Point(full_name, (*_assignments({**always, **own, **repeat}), *edits), setting, (*own, *repeat), tuple(repeat)))
    names = [point.name for point in points]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{file}: {twice[0]}: two points have this name, as names omit some characters; list them under points, with names of your own"
        )
    if not points:
        raise UserError(f"{file}: no points; give each key of grid at least one value")
    return points


def refuse_twins(file: Path, sections: Mapping[Point, Mapping[str, Any]]) -> None:
    """Raise UserError if two points have the same parameters, or a later assignment overrides a point's own, so that its row is wrong."""
    for one, other in itertools.combinations(sections, 2):
        if sections[one] == sections[other]:
            reason = (
                overridden(one, parts=True) or overridden(other, parts=True) or "they set values that are already set, or the same values"
            )
            raise UserError(f"{file}: points {one.name} and {other.name} are the same: {reason}; remove one of the two")
    for point in sections:
        if reason := overridden(point):
            raise UserError(f"{file}: point {point.name}: {reason}; remove one of the two")


def overridden(point: Point, parts: bool = False) -> str:
    """A clause on the later assignment that overrides one of the point's own keys (`parts`: or part of its value); empty if none does."""
    keys = [assignment.partition("=")[0].strip() for assignment in point.assignments]
    for (place, key), (later, overriding) in itertools.combinations(enumerate(keys), 2):
        if key in point.own and (f"{key}.".startswith(f"{overriding}.") or (parts and overriding.startswith(f"{key}."))):
            return f"{point.assignments[later][:60]} overrides {point.assignments[place][:60]}"
    return ""


def read_targets(file: Path) -> tuple[str, ...]:
    """The stages that a point's run brings up to date; empty for the report."""
    return tuple(map(str, _read(file).get("targets", [])))


def read_layout(file: Path) -> table.Layout | None:
    """How the sweep is printed; None: every model's report.metric."""
    value = _read(file)
    if "table" not in value:
        return None
    layout = validate(table.Layout, value["table"], str(file), section="table")
    if layout.curve is not None and layout.curve not in value.get("grid", {}):
        raise UserError(
            f"{file}: table.curve: found {layout.curve!r}, expected a key of grid: {', '.join(value.get('grid', {})) or 'none'}"
        )
    return layout


def _read(file: Path) -> dict[str, Any]:
    """The content of a sweep file; UserError if it is not one."""
    value = read_yaml(file)
    unknown = set(value) - {"sections", "set", "grid", "points", "repeat", "targets", "table"}
    if unknown or not ({"grid", "points"} & set(value)):
        raise UserError(
            f"{file}: found {', '.join(map(str, value)) or 'nothing'}; "
            "expected grid: {KEY: [VALUE, ...]} or points: {NAME: {KEY: VALUE}}"
        )
    for section in set(value) & {"set", "grid", "points", "repeat", "table"}:
        if not isinstance(value[section], dict):
            raise UserError(f"{file}: {section}: expected a mapping")
    assigning = {section: value.get(section, {}) for section in ("set", "grid", "repeat")}
    assigning |= {f"points.{name}": assigned for name, assigned in value.get("points", {}).items() if isinstance(assigned, dict)}
    for where, keys in assigning.items():
        if others := [key for key in keys if not isinstance(key, str)]:
            raise UserError(f"{file}: {where}: found the key {others[0]!r}, expected keys of params.yaml, such as rounds.star.lr")
    if not isinstance(value.get("targets", []), list):
        raise UserError(f"{file}: targets: found {value['targets']!r}, expected a list of stages, such as [evaluate@star]")
    for name, assigned in value.get("points", {}).items():
        if not NAME.fullmatch(str(name)) or not isinstance(assigned, dict):
            raise UserError(
                f"{file}: points.{name}: expected a name of letters, digits, _, - and single dots within, and a mapping of keys to values"
            )
    return value


def _sections(file: Path, path: object) -> dict[str, Any]:
    """Whole sections of params.yaml from another file, named relative to the sweep file."""
    if path is None:
        return {}
    if not isinstance(path, str):
        raise UserError(f"{file}: sections: found {path!r}, expected the path of a file with sections of params.yaml")
    return read_yaml(file.parent / path)


def _lists(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {key: value if isinstance(value, list) else [value] for key, value in values.items()}


def _product(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def _assignments(values: Mapping[str, Any]) -> tuple[str, ...]:
    """`--set` assignments: dicts and lists as YAML in one line, null as `null`."""
    return tuple(f"{key}={_yaml(value)}" for key, value in values.items())


def _yaml(value: Any) -> str:
    """A value as YAML in one line; a plain word is not quoted."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) and not _is_special(value) else edit.literal(value)


def _is_special(word: str) -> bool:
    return not isinstance(YAML(typ="safe", pure=True).load(word), str)


def _name(values: Mapping[str, Any]) -> str:
    """A name for these assignments: each key's last part, or the whole key if two share it, and the value."""
    written = (re.sub(r"([^A-Za-z0-9.-]|\.{2,})+", "_", f"{key}_{value}").strip("._-") for key, value in _named(values))
    return "-".join(written)[:100]


def _named(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each key's last part, or the whole key if two share it, with its value in one line."""
    lasts = [key.rpartition(".")[2] for key in values]
    return [(last if lasts.count(last) == 1 else key, _yaml(value)) for last, (key, value) in zip(lasts, values.items(), strict=True)]
