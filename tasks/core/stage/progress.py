"""Progress of long work: a bar with rate and ETA on a terminal, an occasional line in a log."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TextIO, TypeVar

from tasks.core.errors import escaped
from tasks.core.files import WORKER

if TYPE_CHECKING:  # rich costs a process 60 ms: it is imported where there is a terminal
    import rich.progress as rich

T = TypeVar("T")
LOG_SECONDS = 30.0
LIVE = "RETEMPER_LIVE"  # set by a flow that runs on a terminal: it shows lines that begin with \r, and keeps them out of logs
LIVE_SECONDS = 0.5
DRAWN_SECONDS = 0.1


class Progress:
    """Counts completed work of `total` units (None: unknown) and reports it on stderr.

    On a terminal, a bar is redrawn at most every DRAWN_SECONDS; elsewhere, there is a line every LOG_SECONDS. If LIVE is
    set, transient lines (`\\r...\\n`) come in between.
    """

    def __init__(self, what: str, total: int | None, unit: str = "") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = self.resumed = 0
        self.start = self.reported = self.sent = time.monotonic()
        self.silent = bool(os.environ.get(WORKER))
        self.terminal = can_redraw(sys.stderr)
        self.live = bool(os.environ.get(LIVE)) and not self.terminal and not self.silent
        self._bar: rich.TaskID | None = None

    def skip(self, count: int) -> None:
        """Count `count` units as done before this run began: shown, but not in the rate."""
        self.done += count
        self.resumed += count

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units; `note` (a loss, for example) is shown after the rate."""
        self.done += count
        now = time.monotonic()
        if now - self.reported >= (DRAWN_SECONDS if self.terminal else LOG_SECONDS):
            self.reported = now
            self._show(self._line(now, note))
        elif self.live and now - self.sent >= LIVE_SECONDS:
            self.sent = now
            print(f"\r{self._line(now, note)}", file=sys.stderr, flush=True)

    def close(self, note: str = "") -> None:
        """Report the final count and rate."""
        self._show(self._line(time.monotonic(), note), ended=True)

    def _show(self, line: str, ended: bool = False) -> None:
        if self.silent:
            return
        if not self.terminal:
            print(line, file=sys.stderr, flush=True)
            return
        bars = _bars()
        if self._bar is None:
            self._bar = bars.add_task(line, total=self.total, visible=False)
        bars.update(self._bar, description=line, completed=self.done, visible=not ended, refresh=True)
        if ended:
            bars.console.out(line, highlight=False)

    def _line(self, now: float, note: str) -> str:
        elapsed = max(now - self.start, 1e-9)
        rate = (self.done - self.resumed) / elapsed
        share = f"{self.done:,}" + (f"/{self.total:,}" if self.total is not None else "")
        left = f", {_clock((self.total - self.done) / rate)} left" if self.total and rate and self.done < self.total else ""
        line = f"{self.what}: {share} {self.unit}".rstrip() + f", {_pace(rate)}, {_clock(elapsed)}{left}" + (f", {note}" if note else "")
        return escaped(line)


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Yield from `items` and report progress."""
    progress = Progress(what, total, unit)
    for item in items:
        yield item
        progress.advance()
    progress.close()


def leave_bars() -> None:
    """Leave the bars of unfinished work on the screen, the cursor below them, when a stage fails or is stopped."""
    if _bars.cache_info().currsize:
        _bars().stop()
        _bars.cache_clear()


@cache
def _bars() -> "rich.Progress":
    from rich.progress import BarColumn

    return live_footer(
        sys.stderr, "{task.description}", BarColumn(None), auto_refresh=False
    )  # drawn by the worker itself: no thread, no lock in a fork


def can_redraw(stream: TextIO | None) -> bool:
    """Whether a stream's lines may be redrawn: on a terminal, unless TERM or NO_COLOR asks for plain text."""
    plain = os.environ.get("TERM") in ("dumb", "unknown") or os.environ.get("NO_COLOR")
    return stream is not None and stream.isatty() and not plain


def live_footer(terminal: TextIO, line: str, *columns: "rich.ProgressColumn", auto_refresh: bool = True) -> "rich.Progress":
    """Lines at the foot of a terminal, below all that its `console.out` prints.

    `line`: the format of a task's line (str.format), cut to the width. When the number of lines has changed, refresh before you print: rich
    moves up by as many lines as it drew last.
    """
    from rich.console import Console
    from rich.progress import Progress, TextColumn
    from rich.table import Column

    class Screen(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return show  # never hidden: a killed process could not show it again

        def __exit__(self, *raised: object) -> None:
            try:
                super().__exit__(None, None, None)  # writes
            except OSError:  # the terminal was closed
                print_line("", terminal)

    text = TextColumn(line, markup=False, table_column=Column(no_wrap=True, overflow="crop"))
    screen = Screen(file=terminal, force_terminal=True)
    footer = Progress(text, *columns, console=screen, auto_refresh=auto_refresh, redirect_stdout=False, redirect_stderr=False)
    footer.start()
    return footer


def print_line(text: str, stream: TextIO) -> None:
    """Print a line. If that fails, redirect the stream to the null device for all later writers, Python's exit included."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        with suppress(OSError, ValueError):  # the stream has no file descriptor
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())
            os.close(null_device)


def _pace(rate: float) -> str:
    return f"{rate:,.1f}/s" if rate >= 1 or not rate else f"{1 / rate:.1f} s each"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{seconds:02d}s"
