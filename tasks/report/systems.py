"""The systems in the report: means, values per query, and a one-line description of each."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.lexical import without_bm25
from tasks.core.metrics.measures import cutoff, may_use_whole_run, value_schema
from tasks.core.metrics.selection import SYSTEMS, best_system
from tasks.core.params.effective import effective
from tasks.core.retrieval.fusion import DEPTH as FUSED_DEPTH
from tasks.core.tables.parquet import read_table

Floats = npt.NDArray[np.float64]
DEPTH = 100  # default depth of rerank and rescore
SPLITS = ("test", "dev")  # the first available is reported; the best system is chosen on dev, if available


@dataclass(frozen=True)
class System:
    """One row of every table. `values[split]` is the report's metric for each query, in the order of `queries[split]`."""

    name: str
    recipe: str
    metrics: Mapping[str, Mapping[str, float]]
    queries: Mapping[str, list[str]]
    values: Mapping[str, Floats]


def load_systems(metrics: Path, values: Path, metric: str, sections: Mapping[str, Any]) -> list[System]:
    """Every system with a JSON file in `metrics`, in table order. UserError if their measures or queries do not match."""
    names = order_names({path.stem for path in metrics.glob("*.json")}, sections)
    if not names:
        raise UserError(f"{metrics}: found no JSON file, expected one for each system; run evaluate first")
    systems = [_load(name, metrics, values, metric, sections) for name in names]
    for split in SPLITS:
        present = [system for system in systems if split in system.queries]
        for system in present[1:]:
            if system.queries[split] != present[0].queries[split]:
                raise UserError(
                    f"{values}: {system.name} and {present[0].name} have different {split} queries, expected the same; re-run evaluate"
                )
    return systems


def _load(name: str, metrics: Path, values: Path, metric: str, sections: Mapping[str, Any]) -> System:
    means: dict[str, dict[str, float]] = read_json(metrics / f"{name}.json")
    tables: dict[str, pa.Table] = {}
    for split in (split for split in SPLITS if split in means):
        measured = means[split]
        if metric not in measured:
            raise UserError(f"params.yaml: report.metric: found {metric!r}, expected one of evaluate.measures: {', '.join(measured)}")
        tables[split] = read_table(values / name / f"{split}.parquet", value_schema(list(measured)), ["query", metric])
    queries = {split: table["query"].to_pylist() for split, table in tables.items()}
    return System(name, recipe(name, sections), means, queries, {split: table[metric].to_numpy() for split, table in tables.items()})


def order_names(names: set[str], sections: Mapping[str, Any]) -> list[str]:
    """Order names: bm25, then rounds, query towers, fusions, and reordered runs as in params.yaml, then the rest by name."""
    known = ["bm25", *(name for section in SYSTEMS for name in sections.get(section) or {})]
    return [name for name in known if name in names] + sorted(names - set(known))


def depth_note(systems: Sequence[System], sections: Mapping[str, Any]) -> str:
    """A note on systems that have fewer ranks than a measure uses, with these measures; empty if there are none."""
    notes = []
    for system in systems:
        most = ranks(system.name, sections)
        names = list(dict.fromkeys(name for measured in system.metrics.values() for name in measured))
        deeper = [name for name in names if (may_use_whole_run(name) or cutoff(name) > most) and not lower_is_better(name)]
        notes += [f"{system.name} has at most {most:g} ranks, which lowers its {', '.join(deeper)}"] if deeper and most < math.inf else []
    return "; ".join(notes)


def ranks(name: str, sections: Mapping[str, Any]) -> float:
    """The most ranks that a system's lists can have because a run was truncated to be reordered, here or below; infinite if none was."""
    for section in ("rerank", "rescore"):
        if entry := (sections.get(section) or {}).get(name):
            return min(float(entry.get("depth", DEPTH)), ranks(entry["run"], sections))
    if entry := (sections.get("fuse") or {}).get(name):
        both = ranks(entry["first"], sections) + ranks(entry["second"], sections)  # two lists without a common document
        return min(float(entry.get("depth", FUSED_DEPTH)), both) if both < math.inf else both
    return math.inf


def recipe(name: str, sections: Mapping[str, Any]) -> str:
    """One line with a system's parameters, `from warmup, negatives warmup, loss ranknet`, and those of its pre-training.

    Left out are settings that all trained rounds share (see `shared_settings`), and epochs that steps override.
    """
    entries = ((sections.get(section) or {}).get(name) for section in SYSTEMS)
    values = sections.get("bm25") if name == "bm25" else next(filter(None, entries), None)
    words = {"init": "from"} if name != "bm25" else {}
    settings = effective(values or {})
    pretrained = effective((sections.get("pretrain") or {}).get(settings.get("init")) or {})
    common = shared_settings(sections) if name in (sections.get("rounds") or {}) else {}

    def as_text(entry: Mapping[str, Any]) -> str:
        return ", ".join(f"{words.get(key, key)} {_plain(value)}" for key, value in entry.items())

    different = {key: value for key, value in settings.items() if key not in common or common[key] != value}
    return as_text(different) + (f" ({settings['init']}: {as_text(pretrained)})" if pretrained else "")


def shared_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all trained rounds share, except init and negatives; empty with fewer than four such rounds."""
    trained = [effective(entry) for entry in (sections.get("rounds") or {}).values() if entry.get("steps") != 0]
    if len(trained) < 4:
        return {}
    first = {key: value for key, value in trained[0].items() if key not in ("init", "negatives")}
    return {key: value for key, value in first.items() if all(key in entry and entry[key] == value for entry in trained)}


def shared_settings_text(sections: Mapping[str, Any]) -> str:
    """`shared_settings` as text: `batch_queries 32, lr 5e-05`."""
    return ", ".join(f"{key} {_plain(value)}" for key, value in shared_settings(sections).items())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def reported_split(systems: list[System]) -> str:
    """The split of the report's table: test, or dev if no system has test."""
    return next(split for split in SPLITS if any(split in system.metrics for system in systems))


def best(systems: list[System], metric: str, sections: Mapping[str, Any]) -> tuple[System, str]:
    """The best system by the rule of tasks.core.metrics.selection, and the split it was chosen on: dev, or test without dev."""
    split = "dev" if any("dev" in system.metrics for system in systems) else "test"
    measured = {system.name: system for system in systems if split in system.metrics}
    return measured[best_system({name: s.metrics[split][metric] for name, s in measured.items()}, sections)], split


def compared(systems: list[System], split: str, statistics: Mapping[str, Any], sections: Mapping[str, Any]) -> list[System]:
    """The systems that may be compared on `split`: not those with BM25's lists, on dev queries that are made from documents."""
    if split != "dev" or (statistics.get("pseudo") or {}).get("dev") != "pseudo":
        return systems
    names = without_bm25([system.name for system in systems], sections)
    return [system for system in systems if system.name in names]


def opponents(
    systems: list[System], chosen: System, baselines: Sequence[str], metric: str, *, split: str, sections: Mapping[str, Any]
) -> tuple[System, System] | None:
    """The best model, and the system it is compared with: the first baseline in the table. None if there is no other system.

    If the best model is that baseline, it is compared with the next best system that differs on every split: a fusion may be its copy.
    """
    others = [system for system in systems if system is not chosen and split in system.values]
    if not others or split not in chosen.values:
        return None
    by_name = {system.name: system for system in systems}
    first = next((name for name in baselines if name in by_name), chosen.name)
    different = [system for system in others if not _alike(system, chosen)]
    rival = by_name[first] if by_name[first] in others else best(different or others, metric, sections)[0]
    return chosen, rival


def _alike(first: System, second: System) -> bool:
    """Whether two systems have the same value for every query of some split."""
    return any(np.array_equal(first.values[split], second.values[split]) for split in first.values.keys() & second.values.keys())
