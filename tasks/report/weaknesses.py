"""Where the best model fails, by stage failures: groups of queries, the worst queries, and unjudged documents."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks.core.charts.page import percent
from tasks.core.charts.vega import Interval, figure, intervals
from tasks.core.stage.files import read_json


@dataclass(frozen=True)
class Weaknesses:
    """`groups`: those of `split` in groups.json. `worst`: the entries of worst.json. `suspects`: the number of unjudged pairs by split."""

    metric: str
    model: str
    against: str | None
    split: str
    groups: Sequence[Mapping[str, Any]]
    worst: Sequence[Mapping[str, Any]]
    suspects: Mapping[str, int]
    alpha: float

    def losing(self) -> list[Mapping[str, Any]]:
        """The groups in which the model is significantly below the other system."""
        return [group for group in self.groups if self.against and _significant(group, self.alpha) and group["difference"] < 0]


def load_weaknesses(folder: Path) -> Weaknesses | None:
    """Read the stage's files, for dev if there is one: errors are studied on dev, not on test. None if no split was measured."""
    found, worst = read_json(folder / "groups.json"), read_json(folder / "worst.json")
    if not found["splits"]:
        return None
    split = next(iter(found["splits"]))
    suspects = {path.stem: _rows(path) for path in sorted((folder / "suspects").glob("*.csv"))}
    return Weaknesses(
        found["metric"], found["model"], found["against"], split, found["splits"][split], worst.get("queries", []), suspects, found["alpha"]
    )


def _rows(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as handle:
        return sum(1 for _ in csv.reader(handle)) - 1


def _significant(group: Mapping[str, Any], alpha: float) -> bool:
    return group["p_holm"] is not None and group["p_holm"] <= alpha


def chart(found: Weaknesses) -> Markup:
    """A chart of each group's difference, or of its mean if there is no other system."""
    rows = [
        Interval(
            f"{group['dimension']}: {group['name']}",
            group["difference"],
            group["low"],
            group["high"],
            _kind(group, found),
            {"queries": f"{group['queries']:,}", found.model: f"{group['model']:.4f}"}
            | ({found.against: f"{group['against']:.4f}"} if found.against else {}),
        )
        for group in found.groups
    ]
    what = f"{found.metric}, {found.model} minus {found.against}" if found.against else f"{found.metric} of {found.model}"
    spec = intervals(rows, what, unit=f"{percent(1 - found.alpha)} interval", zero=bool(found.against))
    return figure(spec, f"{what}, by groups of queries")


def _kind(group: Mapping[str, Any], found: Weaknesses) -> str:
    if not found.against or not _significant(group, found.alpha):
        return "plain"
    return "won" if group["difference"] > 0 else "lost"


def weakness_sentence(found: Weaknesses) -> str:
    """One or two sentences on where the model fails."""
    tested = [group for group in found.groups if group["p_holm"] is not None]
    parts = []
    if found.against and tested:
        losing, least = found.losing(), min(tested, key=lambda group: group["difference"])
        names = ", ".join(f"{group['dimension']} {group['name']} ({group['difference']:+.4f})" for group in losing)
        small = len(found.groups) - len(tested)
        count = f"{len(tested)} tested" + (f", {small} too small to test" if small else "")
        where = f"{len(losing)} {'group' if len(losing) == 1 else 'groups'} of queries ({count}): {names}"
        parts.append(
            f"On {found.split}, {found.model} is significantly below {found.against} in {where}."
            if losing
            else f"On {found.split}, {found.model} is not significantly below {found.against} in any group of queries ({count}); "
            f"its lowest difference is {least['difference']:+.4f} ({least['dimension']} {least['name']})."
        )
    unjudged = found.suspects.get(found.split, 0)
    if unjudged:
        documents = "1 unjudged document" if unjudged == 1 else f"{unjudged:,} unjudged documents"
        parts.append(f"{documents} that several systems rank high may be relevant.")
    return " ".join(parts)
