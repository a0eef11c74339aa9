"""The output of a run: one line per stage, its own output after its name, and a table at the end."""

import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from tasks.core.errors import Problem, printable
from tasks.core.stage.progress import LIVE, can_redraw, live_footer, print_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

KEPT = "finished stages are kept, and the same command resumes"
RESUMED = (
    "a training resumes from its last checkpoint (how often: checkpoint_seconds of runtime.yaml), "
    "encoding, BM25, mining, and a teacher from their last finished piece; other stages start again"
)
_FIGURE = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
NUMBER = (
    re.compile(  # 1,234.5, +0.01 to +0.02, 0.51 ± 0.02*, 0.51*+, 1.2e-05, 12%, 3.5 s, 1m02s, 2h03m, 12 (full), or - where there is none
        rf"-|\d+m\d\ds|\d+h\d\dm|{_FIGURE}(?: (?:to|±) {_FIGURE})?(?: \({_FIGURE} to {_FIGURE}\))?"
        r"(?: ?%| m?s| min| h| [KMGT]i?B)?(?: \(full\))?(?:[* ][-+ ]?)?"
    )
)
FEW = 3  # skipped stages that are listed one by one; more are only counted
State = Literal["Ran", "Cached", "Failed", "Skipped"]


@dataclass(frozen=True)
class Outcome:
    """How a stage ended. `problem`: why it failed, if it did. `status`: its exit status.

    `began`: when its command began; `ended`: when its outs were in the cache; both in seconds since the epoch, 0 if it did not get that
    far. `work`: seconds of its own work, without start-up, DVC, and caching; None if it did not report them.
    """

    state: State
    seconds: float = 0.0
    status: int = 0
    problem: Problem | None = None
    began: float = 0.0
    ended: float = 0.0
    work: float | None = None


class Listener(Protocol):
    """Is called, like the display, when a stage begins, for each line it prints (also passing ones), and when it ends."""

    def began(self, stage: str) -> None: ...
    def said(self, stage: str, text: str) -> None: ...
    def ended(self, stage: str, outcome: Outcome) -> None: ...


class Display:
    """Prints whole lines from many threads. On a terminal, rich draws the progress of running stages below them.

    If the reader has ended (`retemper run | head`) or the log's disk is full, it prints nothing more, and the run continues.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._width = 0
        self._doing: dict[str, TaskID | None] = {}
        self._foot: Progress | None = None
        self._listener: Listener | None = None
        self._drawn = can_redraw(sys.stdout)

    @contextmanager
    def open(self, stages: Iterable[str], listener: Listener | None = None) -> Iterator[None]:
        """Show `stages` in this context, and pass their events to `listener`."""
        self._width = max(map(len, stages), default=0)
        self._listener = listener
        if self._drawn:
            self._foot = live_footer(sys.stdout, "{task.description} {task.elapsed:>4.0f} s > {task.fields[text]}")
        try:
            yield
        finally:
            with self._guard:
                self._doing.clear()
                if self._foot:
                    self._foot.stop()
                self._foot = self._listener = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for stages: they are set if somebody follows progress."""
        return {LIVE: "1"} if self._drawn or self._listener else {}

    def farewell(self) -> str:
        """The text for a stopped run: which results are kept, and how to resume. Nothing is drawn from now on.

        Takes no lock, because a signal handler calls it.
        """
        if self._foot:
            self._foot.console.quiet = True
        running = list(self._doing)
        lines = [f"stopped{' in ' if running else ''}{', '.join(running)}; {KEPT}"]
        if running:
            lines.append(RESUMED)
        return "".join(f"\nretemper: {line}" for line in lines) + "\n"

    def line(self, text: str = "") -> None:
        with self._guard:
            self._say(printable(text), sys.stdout)

    def warn(self, text: str) -> None:
        with self._guard:
            self._say(f"retemper: warning: {printable(text)}", sys.stderr)

    def began(self, stage: str) -> None:
        """Note that a stage runs from now until `ended`."""
        with self._guard:
            self._doing[stage] = self._foot.add_task(f"{stage:{self._width}}", total=None, text="running") if self._foot else None
        if listener := self._listener:  # the end of a run may remove it meanwhile
            listener.began(stage)

    def runs_alone(self, stage: str) -> bool:
        """Whether no other stage runs."""
        with self._guard:
            return not self._doing.keys() - {stage}

    def progress(self, stage: str, text: str) -> None:
        """Show a running stage's line of progress. On a terminal, it stays until the next such line."""
        with self._guard:
            if self._foot and (task := self._doing.get(stage)) is not None:
                self._foot.update(task, text=printable(text))
        if listener := self._listener:
            listener.said(stage, printable(text))

    def output(self, stage: str, text: str) -> None:
        """Print a line of a stage's own output."""
        self.line(f"{stage:{self._width}} | {text}")
        if listener := self._listener:
            listener.said(stage, printable(text))

    def ended(self, stage: str, outcome: Outcome) -> None:
        with self._guard:
            task = self._doing.pop(stage, None)
            if self._foot and task is not None:
                self._foot.update(task, visible=False, refresh=True)
            self._say(f"{stage:{self._width}} {outcome.state} in {clock(outcome.seconds)}", sys.stdout)
        if listener := self._listener:
            listener.ended(stage, outcome)

    def _say(self, text: str, stream: TextIO) -> None:
        if self._foot and can_redraw(stream):
            self._foot.console.out(text, highlight=False)
        else:
            print_line(text, stream)


def summary(order: Sequence[str], outcomes: Mapping[str, Outcome], seconds: float) -> str:
    """The table of stages, and the counts of their states. If more than FEW were skipped, they share one row."""
    shown = [(name, outcomes.get(name, Outcome("Skipped"))) for name in order]
    rows = [(name, outcome.state, clock(outcome.seconds) if outcome.state in ("Ran", "Failed") else "") for name, outcome in shown]
    skipped = [row for row in rows if row[1] == "Skipped"]
    if len(skipped) > FEW:
        rows = [*(row for row in rows if row[1] != "Skipped"), (f"{len(skipped)} later stages", "Skipped", "")]
    counts: dict[str, int] = {"executed": 0, "cached": 0, "failed": 0, "skipped": 0}
    for _, outcome in shown:
        counts["executed" if outcome.state == "Ran" else outcome.state.lower()] += 1
    state_counts = ", ".join(f"{key} {count}" for key, count in counts.items() if count or key in ("executed", "cached"))
    overhead = sum(outcome.seconds - outcome.work for _, outcome in shown if outcome.state == "Ran" and outcome.work is not None)
    overhead_note = f" (start-up and orchestration of stages: {clock(overhead)})" if overhead else ""
    return f"{text_table(('stage', 'state', 'time'), rows)}\n{state_counts}, in {clock(seconds)}{overhead_note}"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text. Numbers are flush right, except in the first column; other cells are flush left."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = [column > 0 and _is_figures(lines, column) for column in range(len(header))]

    def cell(text: str, column: int) -> str:
        return text.rjust(widths[column]) if right[column] else text.ljust(widths[column])

    return "\n".join("  ".join(cell(text, column) for column, text in enumerate(line)).rstrip() for line in lines)


def fitted_table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> str:
    """Like `text_table`, but in lines of at most `width`, if given.

    Columns that do not fit go into further tables below, each with the first column again. The first column is wrapped if it takes more
    than a third of the width; a column of text is wrapped if at least a third is left for it. A column of figures is never cut.
    """
    lines = [list(header), *map(list, rows)]
    if width is None or max(map(len, text_table(header, lines[1:]).splitlines())) <= width:
        return text_table(header, lines[1:])
    least = max(width // 3, 8)
    cells = [[_wrapped(line[0], least), *([cell] for cell in line[1:])] for line in lines]
    line_width = first_width = max(len(part) for row in cells for part in row[0])
    blocks: list[list[int]] = [[]]
    for column in range(1, len(header)):
        column_width, is_text = 2 + max(len(line[column]) for line in lines), not _is_figures(lines, column)
        if line_width + column_width > width and blocks[-1] and not (is_text and width - line_width - 2 >= least):
            blocks.append([])
            line_width = first_width
        if is_text and line_width + column_width > width:
            column_width = 2 + max(width - line_width - 2, 8)
            for row, line in zip(cells, lines, strict=True):
                row[column] = _wrapped(line[column], column_width - 2)
        blocks[-1].append(column)
        line_width += column_width
    tables = []
    for block in blocks:
        body = [list(parts) for row in cells for parts in zip_longest(*(row[column] for column in (0, *block)), fillvalue="")]
        tables.append(text_table(body[0], body[1:]))
    return "\n\n".join(tables)


def terminal_width() -> int | None:
    """The width of the terminal in columns; None if stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _is_figures(lines: Sequence[Sequence[str]], column: int) -> bool:
    """Whether all cells of a column are numbers or empty, not counting the header in the first line."""
    return all(not line[column] or NUMBER.fullmatch(line[column]) for line in lines[1:])


def _wrapped(name: str, width: int) -> list[str]:
    """Wrap a name to lines of at most `width`. A line breaks after a separator if there is one in its second half."""
    parts = []
    while len(name) > width:
        end = next((place for place in range(width, width // 2, -1) if name[place - 1] in " /:@_-.,"), width)
        parts.append(name[:end].rstrip())
        name = name[end:].lstrip()
    return [*parts, name]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def clock(seconds: float) -> str:
    """Format a duration: 12.3 s, 4m05s, 2h03m."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{remaining:02d}s"


def megabytes(size: int) -> str:
    """A number of bytes in MB, without the unit: `1,234.568`."""
    return f"{size / 1e6:,.3f}"
