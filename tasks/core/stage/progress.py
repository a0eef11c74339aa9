"""Progress of long work: a bar with rate and ETA on a terminal, an occasional line in a log."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
LOG_SECONDS = 30.0
LIVE = "RETEMPER_LIVE"  # set by a flow that runs on a terminal: it shows lines that begin with \r, and keeps them out of logs
LIVE_SECONDS = 0.5


class Progress:
    """Counts completed work of `total` units (None: unknown) and reports it on stderr.

    On a terminal, the line is redrawn at most ten times a second; elsewhere, there is a line every LOG_SECONDS. If LIVE is
    set, transient lines (`\\r...\\n`) come in between.
    """

    def __init__(self, what: str, total: int | None, unit: str = "") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = self.resumed = 0
        self.start = self.told = self.passed = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.live = bool(os.environ.get(LIVE)) and not self.terminal

    def skip(self, count: int) -> None:
        """Count `count` units as done before this run began: shown, but not in the rate."""
        self.done += count
        self.resumed += count

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units; `note` (a loss, for example) is shown after the rate."""
        self.done += count
        now = time.monotonic()
        if now - self.told >= (0.1 if self.terminal else LOG_SECONDS):
            self.told = now
            self._tell(now, note, end="" if self.terminal else "\n")
        elif self.live and now - self.passed >= LIVE_SECONDS:
            self.passed = now
            print(f"\r{self._line(now, note)}", file=sys.stderr, flush=True)

    def close(self, note: str = "") -> None:
        """Report the final count and rate."""
        self._tell(time.monotonic(), note, end="\n")

    def _tell(self, now: float, note: str, end: str) -> None:
        line = self._line(now, note)
        print(f"\r\x1b[K{line}" if self.terminal else line, end=end, file=sys.stderr, flush=True)

    def _line(self, now: float, note: str) -> str:
        elapsed = max(now - self.start, 1e-9)
        rate = (self.done - self.resumed) / elapsed
        share = f"{self.done:,}" + (f"/{self.total:,}" if self.total is not None else "")
        left = f", {_clock((self.total - self.done) / rate)} left" if self.total and rate and self.done < self.total else ""
        return f"{self.what}: {share} {self.unit}".rstrip() + f", {_pace(rate)}, {_clock(elapsed)}{left}" + (f", {note}" if note else "")


def track(items: Iterable[T], what: str, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Yield from `items` and report progress."""
    progress = Progress(what, total, unit)
    for item in items:
        yield item
        progress.advance()
    progress.close()


def _pace(rate: float) -> str:
    return f"{rate:,.1f}/s" if rate >= 1 or not rate else f"{1 / rate:.1f} s each"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{seconds:02d}s"
