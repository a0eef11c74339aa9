"""Training curves as DVCLive leaves them: a TSV for each metric, columns step and value."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POINTS = 200  # points per drawn line; longer curves are drawn as means of equal intervals


@dataclass(frozen=True)
class Curve:
    """One line of one chart."""

    name: str
    points: tuple[tuple[float, float], ...]


def load_curves(folder: Path, rounds: Sequence[str], wanted: Callable[[str], bool] = lambda _: True) -> dict[str, list[Curve]]:
    """Curves by metric, in the order of `rounds`; untrained rounds have none. Only files of `wanted` metrics are read."""
    curves: dict[str, list[Curve]] = {}
    for name in rounds:
        for path in sorted((folder / name / "plots" / "metrics").glob("*/*.tsv")):
            metric = path.stem if path.parent.name == "train" else f"{path.parent.name} {path.stem}"
            points = thinned(read_tsv(path)) if wanted(metric) else []
            if points:
                curves.setdefault(metric, []).append(Curve(name, tuple(points)))
    return dict(sorted(curves.items(), key=lambda item: (item[0] != "loss", not item[0].startswith("validation "), item[0])))


def losses_by_kind(curves: Mapping[str, Sequence[Curve]], kinds: Mapping[str, str]) -> dict[str, Sequence[Curve]]:
    """`curves` with a loss divided by its kind, `loss (nll)` and `loss (ranknet)`: on one axis, a small one would be a flat line.

    `kinds`: by the names of the curves. If all are of one kind, it stays `loss`.
    """
    charts: dict[str, Sequence[Curve]] = {}
    for metric, metric_curves in curves.items():
        names = list(dict.fromkeys(kinds.get(curve.name, "other") for curve in metric_curves))
        if len(names) < 2 or metric.split()[-1] != "loss":
            charts[metric] = metric_curves
            continue
        charts |= {f"{metric} ({kind})": [curve for curve in metric_curves if kinds.get(curve.name, "other") == kind] for kind in names}
    return charts


def read_tsv(path: Path) -> list[tuple[float, float]]:
    """(step, value) of every line after the header whose value is finite; `step` is found by its name, the value is the last column.

    Empty without a file.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if not lines or "step" not in lines[0].split("\t"):
        return []
    step = lines[0].split("\t").index("step")
    points = []
    for line in lines[1:]:
        fields = line.split("\t")
        try:
            point = float(fields[step]), float(fields[-1])
        except (ValueError, IndexError):
            continue
        if all(map(math.isfinite, point)):
            points.append(point)
    return points


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS points: the means of intervals of equal length."""
    if len(points) <= POINTS:
        return list(points)
    size = math.ceil(len(points) / POINTS)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in stretches]
