"""Metrics of evaluated models, as stages wrote them: `data/metrics/MODEL.json`, `{split: {measure: value}}`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.results.fusions import fusions, is_served
from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import best_system

METRICS = Path("data/metrics")
INDEXES = Path("data/indexes")

Metrics = Mapping[str, Mapping[str, Mapping[str, float]]]  # model, split, measure


def read_metrics(folder: Path = METRICS) -> Metrics:
    """Every model's metrics, by name. UserError for a file that has none."""
    by_path = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    for path, value in by_path.items():
        if not isinstance(value, dict) or not all(isinstance(split, dict) for split in value.values()):
            raise UserError(f"{path}: found no metrics, expected {{split: {{measure: value}}}}; remove it and run again")
    return {path.stem: value for path, value in by_path.items()}


def rows(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: one row per split and model, with test last and better models further down."""
    measures: list[str] = []
    for splits in metrics.values():
        for values in splits.values():
            measures += [name for name, value in values.items() if isinstance(value, (int, float)) and name not in measures]
    order = sorted({split for splits in metrics.values() for split in splits}, key=lambda split: (split == "test", split))
    body = []
    for split in order:
        evaluated = [(model, splits[split]) for model, splits in metrics.items() if split in splits]
        sign = -1 if measures and lower_is_better(measures[0]) else 1
        for model, values in sorted(evaluated, key=lambda pair: sign * float(pair[1].get(measures[0], 0)) if measures else 0):
            body.append([model, split, *(f"{values[name]:.4f}" if isinstance(values.get(name), (int, float)) else "" for name in measures)])
    return ["model", "split", *measures], body


def deciding_split(metrics: Metrics) -> str:
    """The split on which the best model is chosen: dev, or test if models were measured on no dev queries."""
    return "dev" if not metrics or any("dev" in splits for splits in metrics.values()) else "test"


def best_model(
    metrics: Metrics, measure: str, sections: Mapping[str, Any], *, indexes: Path = INDEXES, split: str = "dev", fused: bool = False
) -> str:
    """The best model by `measure` on `split` among those with an index; among equals, the simplest by `sections` (params.yaml).

    `fused`: include fusions that can be searched. Raises UserError if there is no such model.
    """
    served = served_models(metrics, measure, sections, indexes=indexes, split=split, fused=fused)
    if not served:
        raise UserError(f"{METRICS}: no model with an index and {measure} on {split}; run retemper run first, on data with {split} queries")
    return best_system(served, sections)


def served_models(
    metrics: Metrics, measure: str, sections: Mapping[str, Any], *, indexes: Path = INDEXES, split: str = "dev", fused: bool = False
) -> dict[str, float]:
    """`measure` on `split` of every model with an index; `fused`: and of fusions that can be searched."""
    served_fusions = {name for name in fusions(sections) if is_served(name, sections)} if fused else set()
    return {
        model: float(splits[split][measure])
        for model, splits in metrics.items()
        if measure in splits.get(split, {}) and (model in served_fusions or (indexes / model).exists())
    }
