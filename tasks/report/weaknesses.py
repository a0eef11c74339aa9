"""Where the best model fails, by stage failures: groups of queries, the worst queries, and unjudged documents."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks.core.charts.page import confidence
from tasks.core.charts.vega import Interval, figure, intervals
from tasks.core.files import read_json


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
    record, worst = read_json(folder / "groups.json"), read_json(folder / "worst.json")
    if not record["splits"]:
        return None
    split = next(iter(record["splits"]))
    suspects = {path.stem: _rows(path) for path in sorted((folder / "suspects").glob("*.csv"))}
    return Weaknesses(
        record["metric"],
        record["model"],
        record["against"],
        split,
        record["splits"][split],
        worst.get("queries", []),
        suspects,
        record["alpha"],
    )


def _rows(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as handle:
        return sum(1 for _ in csv.reader(handle)) - 1


def _significant(group: Mapping[str, Any], alpha: float) -> bool:
    return group["p_holm"] is not None and group["p_holm"] <= alpha


def chart(weaknesses: Weaknesses) -> Markup:
    """A chart of each group's difference, or of its mean if there is no other system."""
    rows = [
        Interval(
            f"{group['dimension']}: {group['name']}",
            group["difference"],
            group["low"],
            group["high"],
            _kind(group, weaknesses),
            {"queries": f"{group['queries']:,}", weaknesses.model: f"{group['model']:.4f}"}
            | ({weaknesses.against: f"{group['against']:.4f}"} if weaknesses.against else {}),
        )
        for group in weaknesses.groups
    ]
    label = (
        f"{weaknesses.metric}, {weaknesses.model} minus {weaknesses.against}"
        if weaknesses.against
        else f"{weaknesses.metric} of {weaknesses.model}"
    )
    spec = intervals(rows, label, unit=f"{confidence(weaknesses.alpha)} interval", zero=bool(weaknesses.against))
    return figure(spec, f"{label}, by groups of queries")


def _kind(group: Mapping[str, Any], weaknesses: Weaknesses) -> str:
    if not weaknesses.against or not _significant(group, weaknesses.alpha):
        return "plain"
    return "won" if group["difference"] > 0 else "lost"


def weakness_sentence(weaknesses: Weaknesses) -> str:
    """One or two sentences on where the model fails."""
    tested = [group for group in weaknesses.groups if group["p_holm"] is not None]
    parts = []
    if weaknesses.against and tested:
        losing, lowest = weaknesses.losing(), min(tested, key=lambda group: group["difference"])
        names = ", ".join(f"{group['dimension']} {group['name']} ({group['difference']:+.4f})" for group in losing)
        untested = len(weaknesses.groups) - len(tested)
        count = f"{len(tested)} tested" + (f", {untested} too small to test" if untested else "")
        places = f"{len(losing)} {'group' if len(losing) == 1 else 'groups'} of queries ({count}): {names}"
        parts.append(
            f"On {weaknesses.split}, {weaknesses.model} is significantly below {weaknesses.against} in {places}."
            if losing
            else f"On {weaknesses.split}, {weaknesses.model} is not significantly below {weaknesses.against} in any group "
            f"of queries ({count}); its lowest difference is {lowest['difference']:+.4f} ({lowest['dimension']} {lowest['name']})."
        )
    unjudged = weaknesses.suspects.get(weaknesses.split, 0)
    if unjudged:
        documents = "1 unjudged document" if unjudged == 1 else f"{unjudged:,} unjudged documents"
        parts.append(f"{documents} that several systems rank high may be relevant.")
    return " ".join(parts)
