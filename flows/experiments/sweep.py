"""`retemper sweep`: the points of a grid, each run in a git worktree over the one cache and stored as a DVC experiment."""

import hashlib
import json
import queue
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.experiments import choice, store, table
from flows.experiments.choice import Check
from flows.experiments.grid import Point, read_layout, read_points, read_targets, refuse_twins
from flows.parameters import checks, edit
from flows.parameters.sources import write_source
from flows.pipeline.stage import find_devices
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import print_problems
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
from tasks.core.errors import USER_ERROR, InputChanged, Problem, UserError
from tasks.core.files import file_digest, read_json, write_text
from tasks.core.params.sections import read_yaml
from tasks.core.plurals import counted
from tasks.core.stage.code import PACKAGE, Reader
from tasks.core.stage.references import freeze_references, frozen_references

FOLDER = Path(".retemper/sweep")

Describe = Callable[[Path, Path], None]  # brings a source.json up to date with a params.yaml


def describe_sources(params: Path, described: Path) -> None:
    """Describe the sources without warnings: the point's own run warns of an unavailable source."""
    write_source(params, described, warn=lambda _: None)


@dataclass(frozen=True)
class Inputs:
    """A digest of everything that a point is computed from, its parameters, and the digests of its sources (`source_digests`)."""

    digest: str
    sections: Mapping[str, Any]
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Beside:
    """What the runs of a sweep share: the commit and the changes that they start from, the inputs of points, and the command to run."""

    baseline: str
    changes: Changes
    computed: Mapping[Point, Inputs]
    run: Sequence[str]
    jobs: int
    processes: Processes
    display: Display


def sweep(
    file: Path,
    jobs: int,
    test: bool,
    *,
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
    check = check or checks.check
    points, targets, layout = read_points(file, edits), read_targets(file), read_layout(file)
    baseline = commit_of("HEAD")
    display, processes = Display(), Processes()
    with stopping_on_signals(processes), locks.hold_run_lock(FOLDER / "sweep.lock"):
        known = {one.name: one for one in store.list_experiments(baseline)}
        changes = read_changes(baseline)  # once: a later edit belongs to no point
        computed = {point: inputs(point, check, describe, targets=targets) for point in points}  # every point is checked before any runs
        _check_together(file, computed, layout=layout, targets=targets)
        names = {point: f"{point.name}-{point_inputs.digest[:6]}" for point, point_inputs in computed.items()}
        unmeasured = {names[point] for point in points if _lacking(known.get(names[point]), computed[point], targets)}
        waiting = {point: name for point, name in names.items() if name not in known or name in unmeasured}
        again = f"; {len(unmeasured)} run again, as this clone's cache lacks their metrics or has them corrupt" if unmeasured else ""
        display.line(f"{counted(len(points), 'points')}, {len(points) - len(waiting)} of them stored already{again}")
        problems = _run_points(waiting, Beside(baseline, changes, computed, (*run, *targets), jobs, processes, display))
    stored = {one.name: one for one in store.list_experiments(baseline)}
    done = [stored[name] for name in names.values() if name in stored]
    lacking = {point: _lacking(stored.get(name), computed[point], targets) for point, name in names.items()}
    if done:
        tried = [
            replace(point.tried(point_inputs.sections, stored.get(names[point])), complete=not lacking[point])
            for point, point_inputs in computed.items()
        ]
        chosen = choice.choose(tried, layout, targets=targets, check=check)
        if layout:
            results = [(point.setting, stored[name]) for point, name in names.items() if name in stored]
            _show_table(results, layout, FOLDER / f"{file.stem}.html", test=test, notes=chosen, display=display)
        else:
            display.line(f"\n{store.table(done, test)}")
        for line in ["", *chosen] if chosen else []:
            display.line(line)
    problems += [
        Problem("pipeline", f"{point.name}: the cache has no intact metrics of {', '.join(models)}; run retemper verify, then this again")
        for point, models in lacking.items()
        if models
    ]
    print_problems(problems)
    return 0 if len(done) == len(points) and not any(lacking.values()) else 1


def _lacking(experiment: store.Experiment | None, point_inputs: Inputs, targets: Sequence[str]) -> list[str]:
    """The models that a point measures, but whose metrics are missing or corrupt. Earlier measurements in its dvc.lock do not count."""
    measured = table.measured_models(point_inputs.sections, targets)
    return [model for model in experiment.lacking if model in measured] if experiment else []


def _check_together(file: Path, computed: Mapping[Point, Inputs], *, layout: table.Layout | None, targets: Sequence[str]) -> None:
    """UserError if two points are the same, or the table cannot have a point's results."""
    refuse_twins(file, {point: point_inputs.sections for point, point_inputs in computed.items()})
    if layout:
        for point, point_inputs in computed.items():
            table.check_layout(layout, point_inputs.sections, targets, where=f"{file}: point {point.name}")


def _run_points(names: Mapping[Point, str], shared: Beside) -> list[Problem]:
    """Run the points, `shared.jobs` at a time, and store each under its name; return why some failed."""
    shutil.rmtree(FOLDER / "turns", ignore_errors=True)
    for old in FOLDER.glob("tree-*"):  # of earlier versions
        remove_worktree(old)
    count = min(shared.jobs, len(names))
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(count):
        slots.put(slot)

    def work(point: Point) -> Problem | None:
        slot = slots.get()
        try:
            return _run_point(point, names[point], shared, slot=slot)
        except Stopped:
            return None
        except (UserError, OSError) as error:
            return Problem("pipeline", f"{point.name}: {error}")
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(max(1, count)) as pool:
        return [problem for problem in pool.map(work, names) if problem]


def _show_table(
    results: Sequence[tuple[table.Setting, store.Experiment]],
    layout: table.Layout,
    page: Path,
    *,
    test: bool,
    notes: Sequence[str],
    display: Display,
) -> None:
    """Print the table of a sweep on dev, and with `test` on test, and write its page, which has the `notes` too."""
    cells = {split: table.collect(results, layout, split) for split in (["dev", "test"] if test else ["dev"])}
    table.write(cells, layout, page, notes=notes)
    for split, split_cells in cells.items():
        display.line(f"\n{table.as_text(split_cells, layout, split)}")
    display.line(f"page: {page}")


def inputs(point: Point, check: Check, describe: Describe = describe_sources, *, targets: Sequence[str] = ()) -> Inputs:
    """The inputs of a point: its params.yaml, the working tree's graph and code, its sources as they are now, and its `targets`."""
    source, scratch, described = Path("data/source.json"), FOLDER / "params.yaml", FOLDER / "source.json"
    described.unlink(missing_ok=True)
    if source.exists():
        write_text(described, source.read_text(encoding="utf-8"))
    write_text(scratch, Path("params.yaml").read_text(encoding="utf-8"))
    try:
        edit.apply(point.assignments, scratch, check, by_user=True)
        describe(scratch, described)
        total, sections = hashlib.sha256(scratch.read_bytes()), read_yaml(scratch)
    except UserError as error:
        raise UserError(f"point {point.name}: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)
    reader = Reader(Path())
    code = [reader.stage_digests(), frozen_references(freeze_references(sections, reader))]
    total.update(json.dumps(code, sort_keys=True).encode())  # of tasks/
    for name in [name for name in code_files(Path()) if name not in ("params.yaml", PACKAGE)]:
        for file in sorted([Path(name)] if Path(name).is_file() else Path(name).rglob("*.py")):
            total.update(f"{file}\0{file_digest(file)}\n".encode())
    total.update(described.read_bytes() if described.exists() else b"")
    total.update(" ".join(targets).encode())
    return Inputs(total.hexdigest(), sections, source_digests(described))


def source_digests(described: Path) -> dict[str, str]:
    """The digest of every source in a source.json, by its name there (`rerankers.small`); empty if there is no such file."""
    values = store.flatten(read_json(described)) if described.exists() else {}
    return {key.removesuffix(".digest"): str(value) for key, value in values.items() if key.endswith(".digest")}


def _run_point(point: Point, name: str, shared: Beside, *, slot: int) -> Problem | None:
    """Bring worktree `slot` to the user's state with the point's parameters, run there, and store; return why it failed, if it did."""
    processes, display = shared.processes, shared.display
    if processes.stopped:
        raise Stopped
    room = FOLDER / f"slot-{slot}"
    tree = make_worktree(tree_place(room, f"tree-{slot}"), shared.baseline)
    carry_changes(shared.changes, tree)
    edit.apply(point.assignments, tree / "params.yaml", lambda _: None)
    equip(tree)
    link_sources(tree, room)
    lines: list[str] = []

    def show(line: str) -> None:
        if line.startswith("\r"):
            return
        lines.append(line)
        if " | " in line or line.startswith("retemper: "):
            display.output(point.name, line)

    env = {TYPED: f"{typed_command()}: {point.name}", **_slot_environment(slot, shared.jobs)}
    status, problems = run_in(tree, shared.run, processes, show=show, env=env)
    if processes.stopped:
        raise Stopped
    if status:
        last = problems[-1] if problems else Problem("pipeline", f"its run ended with status {status}", status)
        return replace(last, message=f"{point.name}: {last.message}; its working tree: {tree}")
    now = source_digests(tree / "data/source.json")  # as the point's own run has found them
    if changed := [key for key, digest in shared.computed[point].sources.items() if now.get(key) != digest]:
        message = f"the source of {', '.join(changed)} has changed since the sweep began, so the point is not stored; run the sweep again"
        return Problem(InputChanged.kind, f"{point.name}: {message}", USER_ERROR)
    store.save(tree, shared.baseline, name, inputs=name.rpartition("-")[2], files=[LOCK, "data/source.json"])
    summary = next((line for line in reversed(lines) if line.startswith("executed ")), "")
    display.line(f"{point.name}: stored as {name} ({summary})")
    return None


def _slot_environment(slot: int, jobs: int) -> dict[str, str]:
    """The environment of a slot's runs: its own Prefect; beside others also a GPU, where there are several, and turns for shared stages."""
    env = {"PREFECT_HOME": str((FOLDER / f"prefect-{slot}").absolute())}
    if jobs > 1:
        env[TURNS] = str((FOLDER / "turns").absolute())
        devices = find_devices()
        if len(set(devices)) > 1:
            env["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return env
