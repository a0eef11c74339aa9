"""The runs of a project: in its folder, and in the git worktrees in which retrainings, sweeps, evaluations, and others work."""

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from flows.repository.git import GitFailed, git
from flows.watching.record import BEFORE, RECORD, RunNow, StageNow, read

BORN = 5.0  # seconds by which the start of one process may be told differently
SHARE = re.compile(r": (\d[\d,]{0,30})/(\d[\d,]{0,30})\b")  # of a line of tasks.core.stage.progress
LEFT = re.compile(r", (?:(\d+)h(\d\d)m|(\d+)m(\d\d)s) left\b")  # of such a line, too
DONE = ("ran", "cached", "failed", "stopped", "skipped")


@dataclass(frozen=True)
class Seen:
    """A run, and where: `place` is its folder, as seen from the project's. `alive`: whether it still runs. `heard`: when its record was
    written, in seconds since the epoch. `goes_on`: the run has ended, and its command has not, as a retraining compares models then.
    """

    place: str
    folder: Path
    run: RunNow
    alive: bool
    heard: float
    goes_on: bool = False

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
        if self.run.problem == "stopped" and not any(stage.state == "failed" for stage in self.run.stages):
            return "stopped"
        return "done" if self.run.is_done else "failed"

    def until(self, now: float) -> float:
        """The time up to which something is known of the run."""
        return self.run.ended or (now if self.alive else self.heard)


def find(project: Path) -> list[Seen]:
    """All runs that are recorded: those that still run first, then those whose commands do, then the latest."""
    here = project.resolve()
    seen = [one for folder in sorted({here, *_trees(here)}) if (one := _look(folder, here))]
    return sorted(seen, key=lambda one: (not one.alive, not one.goes_on, -one.run.began))


def _trees(project: Path) -> list[Path]:
    """The project's folder in each worktree; none where git refuses (it is another user's), for what runs here is known all the same."""
    try:
        prefix = git("rev-parse", "--show-prefix", folder=project)
        listed = git("worktree", "list", "--porcelain", folder=project).splitlines()
    except (GitFailed, OSError):
        return []
    return [Path(line.removeprefix("worktree "), prefix).resolve() for line in listed if line.startswith("worktree /")]


def _look(folder: Path, project: Path) -> Seen | None:
    """The run of a folder; before a command's first run there, what it does until then."""
    before, run = (_look_at(folder, project, name) for name in (BEFORE, RECORD))
    if before and (before.alive or before.goes_on) and not (run and run.run.began > before.run.began):
        return before
    return run


def _look_at(folder: Path, project: Path, name: Path) -> Seen | None:
    run = read(folder / name)
    try:
        heard = (folder / name).stat().st_mtime
    except OSError:  # its tree has just ended
        return None
    return Seen(_place(folder, project), folder, run, _alive(run), heard, _goes_on(run)) if run else None


def share(said: str) -> float | None:
    """The share of its work that a line of progress says is done: 0 to 1."""
    found = SHARE.search(said)
    if not found:
        return None
    done, whole = (int(part.replace(",", "")) for part in found.groups())
    return min(done / whole, 1.0) if whole else None


def left_by_progress(said: str) -> float:
    """The seconds that a line of progress says are left of its own work: of a resumed one, too, whose share says little. 0 without."""
    found = LEFT.search(said)
    hours, minutes, of_minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return 3600.0 * hours + 60 * (minutes + of_minutes) + seconds


def seconds_left(run: RunNow, now: float | None = None) -> tuple[float, int]:
    """What the stages that are not done may take, one after another; and of how many stages that is unknown.

    A stage without a record may take as long as those of its kind that this run has done (train@star, as train@warmup).
    """
    now = time.time() if now is None else now
    took: dict[str, list[float]] = {}
    for stage in run.stages:
        if stage.state == "ran" and stage.began is not None and stage.ended is not None:
            took.setdefault(_kind(stage), []).append(stage.ended - stage.began)
    likely = {kind: mean(seconds) for kind, seconds in took.items()}
    rests = [_rest(stage, stage.estimate or likely.get(_kind(stage)), now) for stage in run.stages if stage.state not in DONE]
    return sum(rest for rest in rests if rest is not None), rests.count(None)


def _kind(stage: StageNow) -> str:
    return stage.name.partition("@")[0]


def _rest(stage: StageNow, likely: float | None, now: float) -> float | None:
    """Seconds that a stage still needs: as its own progress says, else by what it is `likely` to take."""
    if stage.began is not None and (left := left_by_progress(stage.said)):
        return left
    spent = now - stage.began if stage.began is not None else 0.0
    return max(likely - spent, 0.0) if likely is not None else None


def _place(folder: Path, project: Path) -> str:
    if folder == project:
        return "this folder"
    return str(folder.relative_to(project)) if folder.is_relative_to(project) else str(folder)


def _alive(run: RunNow) -> bool:
    """Whether the run's process lives. Of one on another machine (a shared folder), that cannot be asked: it has not ended."""
    return run.ended is None and (run.host != socket.gethostname() or _lives(run))


def _goes_on(run: RunNow) -> bool:
    return run.ended is not None and run.host == socket.gethostname() and _lives(run)


def _lives(run: RunNow) -> bool:
    import psutil  # type: ignore[import-untyped]

    try:
        born: float = psutil.Process(run.process).create_time()
        return abs(born - run.born) < BORN
    except psutil.Error:
        return False
