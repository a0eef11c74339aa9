"""The outcome of a retraining, on the page of its report: the candidate and the champions that it was compared with."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flows.champions.history import Ended
from flows.pages import measured
from flows.process.display import Display
from tasks.core.charts.page import Cell, table

NOTE = (
    "Champions are measured again on today's data. A difference is the candidate's mean minus theirs. The rule decides on dev "
    "(docs/retraining.md); the mean of test is only shown."
)


def show(folder: Path, ended: Ended, display: Display) -> None:
    """Add the outcome to the page of `folder`, the project in the retrainings' worktree, and print its path. A full disk only warns."""
    try:
        with contextlib.chdir(folder):
            measured.add([section(ended)])
            if measured.PAGE.is_file():
                display.line(f"\npage of this retraining: {measured.PAGE.absolute()}")
    except OSError as error:
        display.warn(f"{folder / measured.PAGE}: {error.strerror}; the page does not show how this retraining ended")


def section(ended: Ended) -> measured.Section:
    """The section with the outcome, and a table of each measure by split."""
    metrics, candidate = ended.metrics or {}, ended.candidate or ""
    champions = [name for name in metrics if name.startswith("champion/")]
    rows = [
        [measure, split, number(value), *(cell for name in champions for cell in _cells(value, metrics[name].get(split, {}), measure))]
        for split, values in metrics.get(candidate, {}).items()
        for measure, value in values.items()
        if isinstance(value, (int, float))
    ]
    header = ["measure", "split", candidate, *(word for name in champions for word in (name, f"difference from {name}"))]
    body = Markup("<p><strong>{}</strong></p>{}").format(
        f"{ended.line[:1].upper()}{ended.line[1:]}.", table(header, rows, words=("split",))
    )
    return measured.Section("outcome", "Candidate and champion", body, NOTE if champions else "")


def _cells(value: float, old: Mapping[str, Any], measure: str) -> list[str | Cell]:
    """A champion's mean, and the candidate's difference from it; empty if the champion was not measured."""
    mean = old.get(measure)
    return [number(mean), Cell(f"{value - mean:+.4f}", value - mean)] if isinstance(mean, (int, float)) else ["", ""]


def number(value: float) -> Cell:
    """A cell with four decimals, as in the other tables."""
    return Cell(f"{value:.4f}", value)
