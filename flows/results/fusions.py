"""Fused systems as they are served: which systems they are made from, and with which weight."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.repository.lock import Lock, parameters
from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.params import Parameters

RUNS = Path("data/runs")
BM25 = "bm25"
SEARCHED = ("rounds", "adore")  # sections whose entries can be searched for a new query
FIELDS = {"first": None, "second": None, "method": "linear", "weight": None, "k": None, "depth": None}  # of an entry, with their defaults


def fusions(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of `fuse`."""
    entries = sections.get("fuse")
    return entries if isinstance(entries, Mapping) else {}


def is_served(name: str, sections: Mapping[str, Any]) -> bool:
    """Whether a system of params.yaml can be searched for a new query: not if it reorders a run, or is made from one that does."""
    entry = fusions(sections).get(name)
    if entry is None:
        return name == BM25 or any(name in (sections.get(section) or {}) for section in SEARCHED)
    return all(is_served(str(entry[part]), sections) for part in ("first", "second"))


def fusion_parts(name: str, sections: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The systems to search for a fusion (bm25, models), and the fusions over them, each after those it reads, `name` last.

    Raises UserError if one of them cannot be searched for a new query.
    """
    searched: list[str] = []
    fused: list[str] = []

    def visit(system: str) -> None:
        entry = fusions(sections).get(system)
        if entry is None:
            if not is_served(system, sections):
                raise UserError(
                    f"fuse.{name}: is made from {system}, which reorders a run and cannot be searched for a new query; "
                    f"expected bm25, rounds, entries of adore, or fusions of them"
                )
            searched.append(system)
        else:
            visit(str(entry["first"]))
            visit(str(entry["second"]))
            fused.append(system)

    visit(name)
    return list(dict.fromkeys(searched)), list(dict.fromkeys(fused))


def record_of(name: str, sections: Mapping[str, Any]) -> Path:
    """The file with a fusion's weight (or k). UserError if it is missing, or was made with settings that differ from params.yaml."""
    path = RUNS / name / "fusion.json"
    if not path.exists():
        raise UserError(f"{path}: not found: fuse.{name} has not run yet; run retemper run")
    record, entry = read_json(path), fusions(sections)[name]
    if not isinstance(record, dict) or not {"first", "second", "method"} <= record.keys():
        raise UserError(f"{path}: found no fusion, expected first, second and method; remove it and run again")
    for field, default in FIELDS.items():
        wanted = entry.get(field, default)
        if wanted is not None and record.get(field) != wanted:
            raise UserError(
                f"{path}: found {field} {record.get(field)}, expected {wanted} as in fuse.{name} of params.yaml; run retemper run"
            )
    return path


def depths(systems: Iterable[str], lock: Lock, sections: Mapping[str, Any]) -> tuple[int, int]:
    """The number of ranks of a model's list, and of BM25's, that are fused: as in the runs of `systems`, or else by params.yaml.

    A fusion's weight was chosen on these runs, while params.yaml may have been edited since.
    """
    stages = [BM25, f"retrieve_{BM25}", *(f"{stage}@{system}" for system in systems for stage in ("retrieve", "retrieve_adore"))]
    values = {**sections, **{name: value for stage in stages for name, value in parameters(lock.get(stage, {})).items()}}

    def of(section: str, key: str) -> int:
        record = Parameters.model_fields[section].annotation
        assert record is not None
        return int((values.get(section) or {}).get(key, record.model_fields[key].default))

    return of("retrieve", "depth"), of("bm25", "run_depth")
