"""Why a command failed, as the command itself wrote to a file that its environment names. Printed lines are never parsed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.core.stage.errors import PROBLEM, Problem, printable, report

ROOM = 1 << 16  # bytes kept free for the command, whatever fills the disk in the meantime


class Problems:
    """A command's problems: give it `environment`, and `take` them when it has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(b" " * ROOM)
        self.environment = {PROBLEM: str(self._file)}

    def take(self) -> list[Problem]:
        """What the command wrote, and remove the file; empty where it wrote nothing (it succeeded, crashed or was killed)."""
        try:
            text = self._file.read_text(encoding="utf-8")
            self._file.unlink()
            return [Problem(**record) for record in json.loads(text)] if text.strip() else []
        except (OSError, ValueError, TypeError):  # missing, or truncated by a kill
            return []


def tell(problems: Sequence[Problem]) -> None:
    """A line on stderr for each, and a record for whoever started this process."""
    for problem in problems:
        print(f"retemper: {printable(problem.message)}", file=sys.stderr)
    report(problems)
