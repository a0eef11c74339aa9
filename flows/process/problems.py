"""Why a command failed. The command writes this to a file that its environment names; printed lines are never parsed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.core.errors import PROBLEM, Problem, printable, report

ROOM = 1 << 16  # bytes reserved for the command, in case the disk fills up


class RunFailed(Exception):
    """A run in a second tree failed; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Problems:
    """The problems of a command. Start it with `environment`, and `take` them after it has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(b" " * ROOM)
        self.environment = {PROBLEM: str(self._file)}

    def take(self) -> list[Problem]:
        """Read the command's problems and remove the file. Empty if it wrote none, because it succeeded, crashed, or was killed."""
        try:
            text = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            return [Problem(**record) for record in json.loads(text)] if text.strip() else []
        except (OSError, ValueError, TypeError):  # missing, or truncated by a kill
            return []


def print_problems(problems: Sequence[Problem]) -> None:
    """Print a line on stderr for each problem, and record them for the process that started this one."""
    for problem in problems:
        print(f"retemper: {printable(problem.message)}", file=sys.stderr)
    report(problems)
