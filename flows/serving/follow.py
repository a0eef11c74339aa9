"""Keep a folder of the current champion ready for a server, and point the server's link to it."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flows.champions import machines
from flows.champions.champion import Champion
from flows.champions.champion import current as champion_now
from flows.serving.export import copy_champion
from tasks.core.errors import UserError, printable
from tasks.core.files import new_folder, write_text

LINK = "current"
PROBLEM = "problem"  # a file in the same folder
AGAIN_SECONDS = 60.0  # until a champion that could not be exported is tried again


class Follower:
    """Exports of champions in `folder`: the current one, and the one before it, which a server may still be loading."""

    def __init__(self, project: Path, folder: Path, say: Callable[[str], None], *, fetch_seconds: float = 0) -> None:
        """`say` receives one line at a time. `fetch_seconds`: how often to ask the git remote for other machines' champions; 0: never."""
        self._project, self._folder, self._say, self._fetch = project, folder, say, fetch_seconds
        self._fetched, self._refused, self._again = 0.0, 0, 0.0
        self._problems = {"remote": "", "champion": ""}
        self.number = 0  # of the champion that the link leads to
        self._commit = ""  # and its commit: another machine's may have taken the number

    @property
    def link(self) -> Path:
        """The link that the server follows."""
        return self._folder / LINK

    @property
    def problem(self) -> Path:
        """A file that says why the current champion is not served, or is unknown; absent if all is well."""
        return self._folder / PROBLEM

    def begin(self, first: Champion) -> None:
        """Make the first folder. Raises UserError if parts of the champion are lost."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._show(first)

    def look(self) -> None:
        """Follow a promotion or a rollback. If the new champion cannot be exported, the old one stays, and one line says why."""
        self._ask_remote()
        try:
            now = champion_now(self._project)
        except (UserError, OSError) as error:
            return self._note("champion", str(error))
        if now is None or (now.number, now.commit) == (self.number, self._commit):
            return self._note("champion", "")
        if now.number == self._refused and time.monotonic() < self._again:
            return None
        try:
            self._show(now)
            self._note("champion", "")
        except Exception as error:  # whatever is wrong with it: the server goes on with the old one
            self._refused, self._again = now.number, time.monotonic() + AGAIN_SECONDS
            reason = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
            self._note("champion", f"champion/{now.number} cannot be served yet: {reason}")
        return None

    def _show(self, now: Champion) -> None:
        target = self._folder / f"champion-{now.number}"
        with new_folder(target) as new:
            copy_champion(self._project, now, new, documents=True)
        replace_link(self.link, target.name)
        for other in self._folder.glob("champion-*"):  # a server has loaded what it needs of them
            if other.name not in (target.name, f"champion-{self.number}"):
                shutil.rmtree(other, ignore_errors=True)
        self.number, self._commit = now.number, now.commit

    def _ask_remote(self) -> None:
        if self._fetch and time.monotonic() - self._fetched >= self._fetch:
            self._fetched = time.monotonic()
            try:
                problem = machines.peek(self._project) or ""
            except (UserError, OSError) as error:
                problem = str(error)
            self._note("remote", problem)

    def _note(self, source: str, problem: str) -> None:
        """Report a problem once, not at every look, and write it to the file that the server reads."""
        problem = printable(" ".join(problem.split()))
        if problem == self._problems[source]:
            return
        self._problems[source] = problem
        if problem:
            self._say(f"warning: {problem}")
        with suppress(OSError):  # a full disk
            self.problem.unlink(missing_ok=True)
            if text := "; ".join(filter(None, self._problems.values())):
                write_text(self.problem, text)


def replace_link(link: Path, target: str) -> None:
    """Point a link to `target`, atomically."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
