"""`retemper sweep`: the points of a grid, each run in a git worktree over the one cache and stored as a DVC experiment."""

import hashlib
import itertools
import json
import queue
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.experiments import choice, store, table
from flows.experiments.choice import Check
from flows.parameters import checks, edit
from flows.parameters.sources import write_source
from flows.pipeline.stage import find_devices
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import tell
from flows.process.processes import TYPED, Processes, Stopped, stopping_on_signals, typed_command
from flows.repository.lock import LOCK, commit_of
from flows.repository.worktree import (
    RUN,
    Changes,
    carry_changes,
    code_files,
    equip,
    link_sources,
    make_worktree,
    read_changes,
    remove_worktree,
    run_in,
    tree_place,
)
from flows.storage.dvc import TURNS
from tasks.core.errors import Problem, UserError, counted
from tasks.core.files import file_digest, write_text
from tasks.core.params.sections import read_yaml, validate
from tasks.core.stage.code import PACKAGE, Reader
from tasks.core.stage.references import freeze_references, frozen_references

FOLDER = Path(".retemper/sweep")
NAME = re.compile(r"(?!.*(\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9_.-]*")  # what git takes as the last part of a reference

Describe = Callable[[Path, Path], None]  # brings a source.json up to date with a params.yaml


def describe_sources(params: Path, described: Path) -> None:
    """Describe the sources without warnings: the point's own run warns of an unavailable source."""
    write_source(params, described, warn=lambda _: None)


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


@dataclass(frozen=True)
class Inputs:
    """A digest of everything that a point is computed from, and its parameters."""

    digest: str
    sections: Mapping[str, Any]


def sweep(
    file: Path,
    jobs: int,
    test: bool,
    run: Sequence[str] = RUN,
    check: Check | None = None,
    describe: Describe = describe_sources,
    edits: Sequence[str] = (),
) -> int:
    """Run every point of `file` that is not stored yet, `jobs` at a time; return exit status 0 only if all are stored in the end.

    `edits` are `--set` assignments over those of every point.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least 1")
    points, targets, layout = read_points(file, edits), read_targets(file), read_layout(file)
    run = (*run, *targets)
    baseline = commit_of("HEAD")
    display, processes = Display(), Processes()
    problems: list[Problem] = []
    with stopping_on_signals(processes), locks.hold_run_lock(FOLDER / "sweep.lock"):
        known = {one.name for one in store.list_experiments(baseline)}
        check = check or checks.check
        changes = read_changes(baseline)  # once: a later edit belongs to no point
        computed = {point: inputs(point, check, describe, targets=targets) for point in points}  # every point is checked before any runs
        refuse_twins(file, {point: point_inputs.sections for point, point_inputs in computed.items()})
        if layout:
            for point, point_inputs in computed.items():
                table.check_layout(layout, point_inputs.sections, targets, f"{file}: point {point.name}")
        names = {point: f"{point.name}-{point_inputs.digest[:6]}" for point, point_inputs in computed.items()}
        shutil.rmtree(FOLDER / "turns", ignore_errors=True)
        for old in FOLDER.glob("tree-*"):  # of earlier versions
            remove_worktree(old)
        waiting = [point for point in points if names[point] not in known]
        display.line(f"{counted(len(points), 'points')}, {len(points) - len(waiting)} of them stored already")
        slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(min(jobs, len(waiting))):
            slots.put(slot)

        def work(point: Point) -> None:
            slot = slots.get()
            try:
                if problem := _run_point(point, names[point], baseline, changes, slot, jobs, processes, display, run):
                    problems.append(problem)
            except Stopped:
                pass
            except (UserError, OSError) as error:
                problems.append(Problem("pipeline", f"{point.name}: {error}"))
            finally:
                slots.put(slot)

        with ThreadPoolExecutor(max(1, min(jobs, len(waiting)))) as pool:
            list(pool.map(work, waiting))
    stored = {one.name: one for one in store.list_experiments(baseline)}
    done = [stored[name] for name in names.values() if name in stored]
    tried = [point.tried(point_inputs.sections, stored.get(names[point])) for point, point_inputs in computed.items()]
    chosen = choice.choose(tried, layout, targets=targets, check=check) if done else []
    if done and layout:
        results = [(point.setting, stored[name]) for point, name in names.items() if name in stored]
        cells = {split: table.collect(results, layout, split) for split in (["dev", "test"] if test else ["dev"])}
        page = FOLDER / f"{file.stem}.html"
        table.write(cells, layout, page, notes=chosen)
        for split, split_cells in cells.items():
            display.line(f"\n{table.as_text(split_cells, layout, split)}")
        display.line(f"page: {page}")
    elif done:
        display.line(f"\n{store.table(done, test)}")
    for line in ["", *chosen] if chosen else []:
        display.line(line)
    tell(problems)
    return 0 if len(done) == len(points) else 1


def read_points(file: Path, edits: Sequence[str] = ()) -> list[Point]:
    """The points of a sweep: the product of `grid`, then `points`, each once for every combination of `repeat`.

    A point's assignments are the sections of the file `sections`, `set`, its own, and `edits`, in this order. Raises UserError if the
    file is not a sweep, or two points have the same name.
    """
    value = _read(file)
    always = {**_sections(file, value.get("sections")), **value.get("set", {})}
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
            f"{file}: {twice[0]}: two points have that name: their values differ only in what names leave out; name them under points:"
        )
    if not points:
        raise UserError(f"{file}: no points; give each key of grid at least one value")
    return points


def refuse_twins(file: Path, sections: Mapping[Point, Mapping[str, Any]]) -> None:
    """Raise UserError if two points have the same parameters, or a later assignment overrides a point's own, so that its row is wrong."""
    for one, other in itertools.combinations(sections, 2):
        if sections[one] == sections[other]:
            reason = overridden(one, parts=True) or overridden(other, parts=True) or "they set what is set already, or the same"
            raise UserError(f"{file}: points {one.name} and {other.name} are the same: {reason}; remove one of the two")
    for point in sections:
        if reason := overridden(point):
            raise UserError(f"{file}: point {point.name} does not have its own value: {reason}; remove one of the two")


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


def inputs(point: Point, check: Check, describe: Describe = describe_sources, root: Path = Path(), targets: Sequence[str] = ()) -> Inputs:
    """The inputs of a point: its params.yaml, the working tree's graph and code, its sources as they are now, and its `targets`."""
    scratch, described = FOLDER / "params.yaml", FOLDER / "source.json"
    described.unlink(missing_ok=True)
    if (root / "data/source.json").exists():
        write_text(described, (root / "data/source.json").read_text(encoding="utf-8"))
    write_text(scratch, (root / "params.yaml").read_text(encoding="utf-8"))
    try:
        edit.apply(point.assignments, scratch, check)
        describe(scratch, described)
        total, sections = hashlib.sha256(scratch.read_bytes()), read_yaml(scratch)
    except UserError as error:
        raise UserError(f"point {point.name}: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)
    reader = Reader(root)
    code = [reader.stage_digests(), frozen_references(freeze_references(sections, reader))]
    total.update(json.dumps(code, sort_keys=True).encode())  # of tasks/
    for name in [name for name in code_files(root) if name not in ("params.yaml", PACKAGE)]:
        for file in sorted([root / name] if (root / name).is_file() else (root / name).rglob("*.py")):
            total.update(f"{file.relative_to(root)}\0{file_digest(file)}\n".encode())
    total.update(described.read_bytes() if described.exists() else b"")
    total.update(" ".join(targets).encode())
    return Inputs(total.hexdigest(), sections)


def _run_point(
    point: Point,
    name: str,
    baseline: str,
    changes: Changes,
    slot: int,
    jobs: int,
    processes: Processes,
    display: Display,
    run: Sequence[str],
) -> Problem | None:
    """Bring worktree `slot` to the user's state with the point's parameters, run there, and store; return why it failed, if it did."""
    if processes.stopped:
        raise Stopped
    room = FOLDER / f"slot-{slot}"
    tree = make_worktree(tree_place(room, f"tree-{slot}"), baseline)
    carry_changes(changes, tree)
    edit.apply(point.assignments, tree / "params.yaml", lambda _: None)
    equip(tree)
    link_sources(tree, room)
    inputs_ = name.rpartition("-")[2]
    devices = find_devices()
    device_env = {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]} if jobs > 1 and len(set(devices)) > 1 else {}
    prefect_env = {"PREFECT_HOME": str((FOLDER / f"prefect-{slot}").absolute())}
    turns_env = {TURNS: str((FOLDER / "turns").absolute())} if jobs > 1 else {}
    lines: list[str] = []

    def show(line: str) -> None:
        if line.startswith("\r"):
            return
        lines.append(line)
        if " | " in line or line.startswith("retemper: "):
            display.output(point.name, line)

    status, problems = run_in(
        tree, run, processes, show=show, env={TYPED: f"{typed_command()}: {point.name}", **device_env, **prefect_env, **turns_env}
    )
    if processes.stopped:
        raise Stopped
    if status:
        last = problems[-1] if problems else Problem("pipeline", f"its run ended with status {status}", status)
        return replace(last, message=f"{point.name}: {last.message}; its working tree: {tree}")
    store.save(tree, baseline, name, inputs_, [LOCK, "data/source.json"])
    summary = next((line for line in reversed(lines) if line.startswith("executed ")), "")
    display.line(f"{point.name}: stored as {name} ({summary})")
    return None


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
