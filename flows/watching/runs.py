"""The runs of a project: in its folder, and in the git worktrees in which retrainings, sweeps, evaluations, and others work."""

import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from flows.repository.git import GitFailed, git
from flows.watching.record import BEFORE, RECORD, RunNow, StageNow, read

BORN = 5.0  # seconds by which two readings of one process's start may differ
SHARE = re.compile(r": (\d[\d,]{0,30})/(\d[\d,]{0,30})\b")  # in a line of tasks.core.stage.progress
LEFT = re.compile(r", (?:(\d+)h(\d\d)m|(\d+)m(\d\d)s) left\b")  # in such a line, too
DONE = ("ran", "cached", "failed", "stopped", "skipped")


@dataclass(frozen=True)
class Seen:
    """A run and its folder; `place`: that folder relative to the project. `alive`: the run is in progress. `recorded_at`: when its record
    was written, in seconds since the epoch. `continues`: the run has ended but its command has not, as when a retraining compares models.
    """

    place: str
    folder: Path
    run: RunNow
    alive: bool
    recorded_at: float
    continues: bool = False

    @property
    def since(self) -> str:
        """When it began, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.run.began))

    @property
    def state(self) -> str:
        """`running`, `done`, `failed`, `stopped`, or `killed` (it ended without recording that)."""
        if self.alive:
            return "running"
        if self.run.ended is None:
            return "killed"
        if self.run.problem == "stopped" and not any(stage.state == "failed" for stage in self.run.stages):
            return "stopped"
        return "done" if self.run.is_done else "failed"

    def until(self, now: float) -> float:
        """The time up to which the run's state is known."""
        return self.run.ended or (now if self.alive else self.recorded_at)


def find(project: Path) -> list[Seen]:
    """All recorded runs: first those in progress, then those whose commands go on, then the latest."""
    root = project.resolve()
    seen = [item for folder in sorted({root, *_trees(root)}) if (item := _look(folder, root))]
    return sorted(seen, key=lambda item: (not item.alive, not item.continues, -item.run.began))


def _trees(project: Path) -> list[Path]:
    """The project's folder in each worktree; none if git refuses (another user's folder), as the run in the project is known anyway."""
    try:
        prefix = git("rev-parse", "--show-prefix", folder=project)
        lines = git("worktree", "list", "--porcelain", folder=project).splitlines()
    except (GitFailed, OSError):
        return []
    return [Path(line.removeprefix("worktree "), prefix).resolve() for line in lines if line.startswith("worktree /")]


def _look(folder: Path, project: Path) -> Seen | None:
    """The run of a folder, or what a command does there before its first run."""
    before, run = (_look_at(folder, project, name) for name in (BEFORE, RECORD))
    if before and (before.alive or before.continues) and not (run and run.run.began > before.run.began):
        return before
    return run


def _look_at(folder: Path, project: Path, name: Path) -> Seen | None:
    run = read(folder / name)
    try:
        recorded_at = (folder / name).stat().st_mtime
    except OSError:  # its tree has just been removed
        return None
    return Seen(_place(folder, project), folder, run, _alive(run), recorded_at, _goes_on(run)) if run else None


def progress_share(said: str) -> float | None:
    """The share of work done by a line of progress, from 0 to 1; None for any other line."""
    match = SHARE.search(said)
    if not match:
        return None
    done, total = (int(part.replace(",", "")) for part in match.groups())
    return min(done / total, 1.0) if total else None


def left_by_progress(said: str) -> float:
    """The seconds left by a line of progress, 0 if it has none. Also right for resumed work, whose share done says little about it."""
    match = LEFT.search(said)
    hours, minutes, of_minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return 3600.0 * hours + 60 * (minutes + of_minutes) + seconds


def seconds_left(run: RunNow, now: float) -> tuple[float, int]:
    """The seconds that the remaining stages may take, one after another, and the number of stages for which that is unknown.

    A stage without a record is assumed to take as long as those of its kind that this run has done (train@star as train@warmup).
    """
    durations: dict[str, list[float]] = {}
    for stage in run.stages:
        if stage.state == "ran" and stage.began is not None and stage.ended is not None:
            durations.setdefault(_kind(stage), []).append(stage.ended - stage.began)
    likely = {kind: mean(seconds) for kind, seconds in durations.items()}
    estimates = [
        _stage_seconds_left(stage, stage.estimate or likely.get(_kind(stage)), now) for stage in run.stages if stage.state not in DONE
    ]
    return sum(estimate for estimate in estimates if estimate is not None), estimates.count(None)


def _kind(stage: StageNow) -> str:
    return stage.name.partition("@")[0]


def _stage_seconds_left(stage: StageNow, likely: float | None, now: float) -> float | None:
    """The seconds that a stage still needs: by its own progress, or else by what it is `likely` to take in all."""
    if stage.began is not None and (left := left_by_progress(stage.said)):
        return left
    spent = now - stage.began if stage.began is not None else 0.0
    return max(likely - spent, 0.0) if likely is not None else None


def shown(path: Path) -> str:
    """A path as text that can be printed and sent: bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def _place(folder: Path, project: Path) -> str:
    if folder == project:
        return "this folder"
    return shown(folder.relative_to(project) if folder.is_relative_to(project) else folder)


def _alive(run: RunNow) -> bool:
    """Whether the run is in progress. For one on another machine (shared folder), that cannot be checked: it is, unless it has ended."""
    return run.ended is None and (run.host != socket.gethostname() or _is_same_process(run))


def _goes_on(run: RunNow) -> bool:
    return run.ended is not None and run.host == socket.gethostname() and _is_same_process(run)


def _is_same_process(run: RunNow) -> bool:
    import psutil  # type: ignore[import-untyped]

    try:
        born: float = psutil.Process(run.process).create_time()
        return abs(born - run.born) < BORN
    except psutil.Error:
        return False
