"""The runs of a project: in its folder, and in the git worktrees in which retrainings, sweeps, evaluations, and others work."""

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from flows.repository.git import git
from flows.watching.record import RECORD, RunNow, StageNow, read

BORN = 5.0  # seconds by which the start of one process may be told differently
SHARE = re.compile(r": ([\d,]+)/([\d,]+)\b")  # of a line of tasks.core.stage.progress
DONE = ("ran", "cached", "failed", "stopped", "skipped")


@dataclass(frozen=True)
class Seen:
    """A run, and where: `place` is its folder, as seen from the project's. `alive`: whether it still runs."""

    place: str
    folder: Path
    run: RunNow
    alive: bool

    @property
    def since(self) -> str:
        """When it began, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.run.began))

    @property
    def state(self) -> str:
        """`running`, `done`, `failed`, `stopped`, or `killed`: it ended without a word."""
        if self.alive:
            return "running"
        if self.run.ended is None:
            return "killed"
        if any(stage.state == "failed" for stage in self.run.stages):
            return "failed"
        return ("stopped" if self.run.problem == "stopped" else "failed") if self.run.problem else "done"


def find(project: Path) -> list[Seen]:
    """All runs that are recorded: those that still run first, then the latest."""
    prefix = git("rev-parse", "--show-prefix", folder=project)
    trees = [line.removeprefix("worktree ") for line in git("worktree", "list", "--porcelain", folder=project).splitlines()]
    folders = {project.resolve(), *(Path(tree, prefix).resolve() for tree in trees if tree.startswith("/"))}
    found = [(folder, read(folder / RECORD)) for folder in sorted(folders)]
    seen = [Seen(_place(folder, project.resolve()), folder, run, _alive(run)) for folder, run in found if run]
    return sorted(seen, key=lambda one: (not one.alive, -one.run.began))


def share(said: str) -> float | None:
    """The share of its work that a line of progress says is done: 0 to 1."""
    found = SHARE.search(said)
    if not found:
        return None
    done, whole = (int(part.replace(",", "")) for part in found.groups())
    return min(done / whole, 1.0) if whole else None


def seconds_left(run: RunNow, now: float | None = None) -> tuple[float, bool]:
    """What the stages that are not done may take, one after another; and whether that is all (else, some are unknown)."""
    now = time.time() if now is None else now
    left, whole = 0.0, True
    for stage in run.stages:
        if stage.state in DONE:
            continue
        rest = _rest(stage, now)
        left, whole = left + (rest or 0.0), whole and rest is not None
    return left, whole


def _rest(stage: StageNow, now: float) -> float | None:
    """Seconds that a stage still needs, by its estimate; one that takes longer than that, by its own progress."""
    spent = now - stage.began if stage.began is not None else 0.0
    if stage.estimate is not None and stage.estimate > spent:
        return stage.estimate - spent
    done = share(stage.said)
    if stage.began is not None and done:
        return spent * (1 - done) / done
    return None if stage.estimate is None else 0.0


def _place(folder: Path, project: Path) -> str:
    if folder == project:
        return "this folder"
    return str(folder.relative_to(project)) if folder.is_relative_to(project) else str(folder)


def _alive(run: RunNow) -> bool:
    """Whether the run's process lives. Of one on another machine (a shared folder), that cannot be asked: it has not ended."""
    import psutil  # type: ignore[import-untyped]

    if run.ended is not None:
        return False
    if run.host != socket.gethostname():
        return True
    try:
        born: float = psutil.Process(run.process).create_time()
        return abs(born - run.born) < BORN
    except psutil.Error:
        return False
