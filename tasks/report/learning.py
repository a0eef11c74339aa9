"""Learning curves: quality on dev after each round, over all optimizer steps since the original encoder.

Rounds start from one another, so a line is a chain of trainings. At each dot, negatives were refreshed (ANCE,
arXiv:2007.00808, Figure 2) or the loss changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.charts.curves import read_tsv
from tasks.core.charts.vega import Line, Point
from tasks.report.systems import System


def steps_of(folder: Path) -> dict[str, int]:
    """The number of optimizer steps of each training in `folder`, from its loss curve, which counts steps from 0."""
    losses = {path.name: read_tsv(path / "plots/metrics/train/loss.tsv") for path in sorted(folder.glob("*")) if path.is_dir()}
    return {name: int(points[-1][0]) + 1 for name, points in losses.items() if points}


def loss_kinds(names: Iterable[str], sections: Mapping[str, Any]) -> dict[str, str]:
    """The loss of each training, as params.yaml names it. Rerankers have their own."""
    kinds = {"rounds": "nll", "adore": "lambda"}  # the sections' defaults
    losses = {
        name: str(entry.get("loss", kind)) for section, kind in kinds.items() for name, entry in (sections.get(section) or {}).items()
    }
    return {name: losses.get(name, "reranker").rpartition(":")[2] for name in names}


def learning_curves(systems: Sequence[System], metric: str, steps: Mapping[str, int], sections: Mapping[str, Any]) -> list[Line]:
    """A line for each chain of at least two trainings that were all measured on dev. `steps`: the optimizer steps of each training."""
    dev = {system.name: system.metrics["dev"][metric] for system in systems if "dev" in system.metrics}
    rounds, adore = sections.get("rounds") or {}, sections.get("adore") or {}
    starts = {name: str(entry.get("init")) for name, entry in rounds.items()} | {
        name: str(entry.get("round")) for name, entry in adore.items()
    }
    untrained = {str(entry.get("init")): name for name, entry in rounds.items() if entry.get("steps") == 0}
    lines = []
    for leaf in starts.keys() - set(starts.values()):
        chain = [name for name in training_chain(leaf, starts) if name in steps]
        if len(chain) < 2 or not set(chain) <= dev.keys():
            continue
        points, total = [], 0
        start = untrained.get(starts[chain[0]])
        if start in dev:
            points.append(Point(0, dev[start], note=f"{start} {dev[start]:.4f}"))
        for name in chain:
            total += steps[name]
            points.append(Point(total, dev[name], note=f"{name} {dev[name]:.4f}{negatives_note(rounds.get(name) or adore[name])}"))
        lines.append(Line(leaf, points))
    order = [system.name for system in systems]
    return sorted(lines, key=lambda line: order.index(line.name))


def training_chain(name: str, starts: Mapping[str, str]) -> list[str]:
    """The chain of trainings that ends with `name`; each starts from the one before it."""
    chain = []
    while name in starts:
        chain.append(name)
        name = starts[name]
    return chain[::-1]


def negatives_note(entry: Mapping[str, Any]) -> str:
    """The negatives of a training, shown under the pointer."""
    return f", negatives {entry['negatives']}" if entry.get("negatives") else ""
