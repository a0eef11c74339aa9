"""The stages that will run again after an upgrade, by the newer version's own dry run: which, why, and how long they took last time."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.explaining.costs import recorded_seconds
from flows.measuring import timing
from flows.parameters.migrations import FILES
from flows.process.display import clock
from flows.process.processes import Processes
from flows.repository.lock import LOCK, read_lock
from flows.repository.worktree import RUN, equip, link_sources, run_in
from flows.repository.worktree import SOURCE as SOURCES
from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.plurals import counted

MIGRATIONS = "flows.parameters.migrations"
CHANGES = Path(".retemper/migrations.json")


@dataclass(frozen=True)
class Again:
    """What a run executes after the upgrade: `because`, stages with what is new about them; `after`, stages that only depend on them."""

    because: Mapping[str, list[str]]
    after: tuple[str, ...]

    def lines(self, seconds: Mapping[str, float]) -> list[str]:
        """Lines for the user. `seconds`: what stages took when they were last made."""
        if not self.because:
            return ["no stage runs again"]
        names: dict[str, list[str]] = {}
        for stage, why in self.because.items():
            names.setdefault(", ".join(why), []).append(stage)
        reason_lines = [f"  {', '.join(stages)}: {why}" for why, stages in names.items()]
        if self.after:
            reason_lines.append(f"  {', '.join(self.after)}: only if a result above changes")
        stages = [*self.because, *self.after]
        recorded = [seconds[stage] for stage in stages if stage in seconds]
        unknown = len(stages) - len(recorded)
        time = f"at most {clock(sum(recorded))} by recorded times" if recorded else "how long that takes is not recorded here"
        unrecorded_note = f" (not recorded: {counted(unknown, 'stages')})" if recorded and unknown else ""
        verb = "runs" if len(self.because) == 1 else "run"
        return [f"{counted(len(self.because), 'stages')} {verb} again, {len(self.after)} may; {time}{unrecorded_note}:", *reason_lines]


def parse_plan(planned: list[dict[str, Any]]) -> Again:
    """Read the output of `retemper run --dry-run --json` from a tree where nothing is checked out.

    A stage that has no reason of its own, and depends on none that runs, comes from the cache.
    """
    because = {str(entry["stage"]): [str(reason) for reason in entry["why"]] for entry in planned if entry["why"]}
    changing = set(because)
    after = []
    for entry in planned:  # in topological order
        if entry["stage"] not in changing and changing.intersection(entry["reads"]):
            changing.add(entry["stage"])
            after.append(str(entry["stage"]))
    return Again(because, tuple(after))


def migrate_files(tree: Path, project: Path, *, made: datetime, processes: Processes) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Bring the parameter files in `tree` up to date with its own code. Return lines by file, and new texts of files not in git.

    The latter belong to this machine; only their copies in `tree` are changed. Raises UserError if the migrations fail.
    """
    if not (tree / f"{MIGRATIONS.replace('.', '/')}.py").is_file():
        return {}, {}
    untracked = [name for name in FILES if (project / name).is_file() and not (tree / name).exists()]
    equip(tree, project)
    for name in untracked:
        shutil.copy2(project / name, tree / name)
    lines: list[str] = []
    command = (sys.executable, "-m", MIGRATIONS, "--made", made.isoformat(), "--told", str(CHANGES))
    (tree / CHANGES).parent.mkdir(exist_ok=True)
    status, problems = run_in(tree, command, processes, show=lines.append)
    if status:
        raise UserError(problems[0].message if problems else f"the newer version's migrations failed: {(lines or ['no message'])[-1]}")
    changes = {str(file): list(lines) for file, lines in read_json(tree / CHANGES).items()}
    (tree / CHANGES).unlink()
    return changes, {name: (tree / name).read_text(encoding="utf-8") for name in untracked if name in changes}


def describe_rerun(tree: Path, room: Path, project: Path, *, processes: Processes) -> list[str]:
    """Lines on what a run in `tree`, an upgraded copy of `project` in its `room`, would execute, or on why that is unknown."""
    for name in (LOCK, SOURCES):
        if (project / name).is_file():
            (tree / name).parent.mkdir(exist_ok=True)
            shutil.copy2(project / name, tree / name)
    link_sources(tree, room)
    lines: list[str] = []
    status, problems = run_in(tree, (*RUN, "--dry-run", "--json"), processes, show=lines.append)
    try:
        if status:
            raise ValueError
        planned = next(json.loads(line) for line in reversed(lines) if line.startswith("["))
    except (ValueError, StopIteration):
        reason = problems[0].message if problems else (lines or ["no answer"])[-1]
        return [f"cannot tell here which stages will run again: {reason}"]
    measured = {stage: time.seconds for stage, time in timing.measured(read_lock()).items()}
    return parse_plan(planned).lines(recorded_seconds(read_lock()) | measured)
