"""Choose the two systems to compare, and read their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.metrics.lexical import without_bm25
from tasks.core.metrics.selection import best_system
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import MEASURED
from tasks.failures.params import Failures

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Values:
    """A metric for each query of a split, [Q], for both systems. `against` is None if there is only one system."""

    queries: Sequence[str]
    model: Floats
    against: Floats | None

    @property
    def difference(self) -> Floats:
        """The model's gain over the other system; without one, the model's values."""
        return self.model if self.against is None else self.model - self.against


def read_means(folder: Path, metric: str) -> dict[str, dict[str, dict[str, float]]]:
    """The means of each system, by split and measure. UserError if there is no system, or if one lacks `metric`."""
    means = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    if not means:
        raise UserError(f"{folder}: found no JSON file, expected one for each system; run evaluate first")
    for splits in means.values():
        for measured in splits.values():
            if metric not in measured:
                raise UserError(f"params.yaml: report.metric: found {metric!r}, expected one of evaluate.measures: {', '.join(measured)}")
    return means


def opponents(
    means: Mapping[str, Mapping[str, Mapping[str, float]]],
    metric: str,
    params: Failures,
    sections: Mapping[str, Any],
    *,
    made: bool = False,
) -> tuple[str, str | None]:
    """The model (by default the best on dev, or on test without dev), and the system it is compared with, or None if there is no other.

    `made`: dev queries are made from documents, which favors BM25, so by default no system that uses it is taken. UserError for a name
    without results.
    """
    for key, name in (("model", params.model), ("against", params.against)):
        if name is not None and name not in means:
            raise UserError(f"params.yaml: failures.{key}: found {name!r}, expected one of {', '.join(means)}")
    split = next(split for split in MEASURED if any(split in splits for splits in means.values()))
    values = {name: splits[split][metric] for name, splits in means.items() if split in splits}
    if made:
        values = {name: values[name] for name in without_bm25(values, sections)}
    model = params.model or best_system(values, sections)
    if params.against == model:
        raise UserError(f"params.yaml: failures.against: found {model!r}, the model itself; expected another system")
    others = {name: value for name, value in values.items() if name != model}
    rival = "bm25" if "bm25" in others else best_system(others, sections) if others else None
    return model, params.against or rival


def load_values(
    folder: Path, split: str, metric: str, means: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str]
) -> Values | None:
    """The values of the model and, if `names` has two, of the other system. None if one was not measured on `split`.

    UserError if their queries differ.
    """
    if not all(split in means[name] for name in names):
        return None
    tables = []
    for name in names:
        schema = pa.schema([("query", pa.string()), *((measure, pa.float64()) for measure in means[name][split])])
        tables.append(read_table(folder / name / f"{split}.parquet", schema, ["query", metric]))
    queries: list[str] = tables[0]["query"].to_pylist()
    if tables[-1]["query"].to_pylist() != queries:
        raise UserError(f"{folder}: {' and '.join(names)} have different {split} queries, expected the same; re-run evaluate")
    columns = [table[metric].to_numpy() for table in tables]
    return Values(queries, columns[0], columns[1] if len(columns) > 1 else None)
