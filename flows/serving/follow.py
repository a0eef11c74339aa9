"""Keeps the folder of the present champion ready for a server, and points the server's link to it."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from flows.champions import machines
from flows.champions.champion import Champion
from flows.champions.champion import current as champion_now
from flows.repository.git import GitFailed
from flows.serving.export import put
from tasks.core.stage.errors import UserError, printable
from tasks.core.stage.files import new_folder

LINK = "current"
AGAIN_SECONDS = 60.0  # until a champion that could not be had is asked for again


class Follower:
    """Exports of champions in `folder`: the present one, and the one before it, which a server may still be loading."""

    def __init__(self, project: Path, folder: Path, say: Callable[[str], None], *, fetch_seconds: float = 0) -> None:
        """`say` is told one line. `fetch_seconds`: how often the git remote is asked for champions of other machines; 0: never."""
        self._project, self._folder, self._say, self._fetch = project, folder, say, fetch_seconds
        self._fetched, self._refused, self._again, self._problem = 0.0, 0, 0.0, ""
        self.number = 0  # of the champion that the link leads to
        self._commit = ""  # and its commit: another machine's may have taken the number

    @property
    def link(self) -> Path:
        """What the server follows."""
        return self._folder / LINK

    def begin(self, first: Champion) -> None:
        """Make the first folder. UserError where its parts are nowhere."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._show(first)

    def look(self) -> None:
        """Follow a promotion or a rollback. Where the new champion cannot be had, the old one stays, and one line says why."""
        self._ask_remote()
        try:
            now = champion_now(self._project)
        except (GitFailed, UserError) as error:
            return self._warn(str(error))
        if (
            now is None
            or (now.number, now.commit) == (self.number, self._commit)
            or (now.number == self._refused and time.monotonic() < self._again)
        ):
            return None
        try:
            self._show(now)
        except Exception as error:  # whatever is wrong with it: the server goes on with the old one
            self._refused, self._again = now.number, time.monotonic() + AGAIN_SECONDS
            reason = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
            self._warn(f"champion/{now.number} cannot be served yet: {reason}")
        return None

    def _show(self, now: Champion) -> None:
        target = self._folder / f"champion-{now.number}"
        with new_folder(target) as new:
            put(self._project, now, new, documents=True)
        point(self.link, target.name)
        self._problem = ""
        for other in self._folder.glob("champion-*"):  # what is loaded of them is in memory
            if other.name not in (target.name, f"champion-{self.number}"):
                shutil.rmtree(other, ignore_errors=True)
        self.number, self._commit = now.number, now.commit

    def _ask_remote(self) -> None:
        if self._fetch and time.monotonic() - self._fetched >= self._fetch:
            self._fetched = time.monotonic()
            try:
                problem = machines.peek(self._project)
            except (GitFailed, UserError) as error:
                problem = str(error)
            if problem:
                self._warn(problem)

    def _warn(self, problem: str) -> None:
        if problem != self._problem:  # said once, not at every look
            self._problem = problem
            self._say(f"warning: {printable(' '.join(problem.split()))}")


def point(link: Path, target: str) -> None:
    """Make a link lead to `target`, in one step."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
