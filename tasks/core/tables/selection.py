"""Model selection: the one rule for "the best system on dev", whoever asks: the report, a search, a retraining, a sweep's table.

The highest mean wins. Of equal means the simpler system does: fewer towers to serve, then fewer entries of params.yaml that it is made
from (so the earlier one in the graph), then the earlier one in params.yaml.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

METRIC = "nDCG@10"  # report.metric where params.yaml does not say
DIGITS = 10  # means that agree this far differ by the order of their additions, not by their rankings
# Fields that name other entries; negatives have their round's name.
NAMING = ("init", "negatives", "round", "run", "first", "second", "encoder")
SERVED = ("run", "first", "second", "encoder")  # of these, what a system that orders runs again needs at query time, beside a cross-encoder
SYSTEMS = ("rounds", "adore", "fuse", "rerank", "rescore")  # sections whose entries are systems
MADE = ("pretrain", *SYSTEMS)  # and those that they start from; no others, for the report depends on these (dvc.yaml)
TOWERS = {"rounds": 1, "adore": 2}  # one shared by queries and documents, one of each

Sections = Mapping[str, Any]
Name = TypeVar("Name", bound=Hashable)


def best_system(values: Mapping[str, float], sections: Sections) -> str:
    """The name with the highest value, of equals the simplest by `sections` (params.yaml); ValueError where there is none."""
    return best_of(values, lambda name: (*complexity(name, sections), name))


def best_of(values: Mapping[Name, float], simplicity: Callable[[Name], Any]) -> Name:
    """The key with the highest value, of equals the one with the least `simplicity`; ValueError where there is none."""
    highest = max(values.values())
    return min((name for name, value in values.items() if ties(value, highest)), key=simplicity)


def metric_of(sections: Sections) -> str:
    """The measure whose mean on dev chooses: report.metric."""
    return str(_entries(sections, "report").get("metric", METRIC))


def least_grade(split: str, sections: Sections) -> int:
    """The lowest grade that counted as relevant where `split` was evaluated: evaluate.relevance, one grade or one for each split."""
    relevance = (sections.get("evaluate") or {}).get("relevance", 1)
    return int(relevance.get(split, 1) if isinstance(relevance, dict) else relevance)


def ties(one: float, other: float) -> bool:
    """Whether two means are the same but for rounding."""
    return abs(one - other) < 10.0**-DIGITS


def complexity(name: str, sections: Sections) -> tuple[int, int, int]:
    """Towers that a query needs, entries of params.yaml that it is made from, place in params.yaml; BM25 first, unknown names last."""
    if name == "bm25":
        return 0, 0, 0
    places = [entry for section in SYSTEMS for entry in _entries(sections, section)]
    if name not in places:
        return sys.maxsize, 0, 0
    return _towers(name, sections, frozenset()), len(_needed(name, sections)), places.index(name)


def _towers(name: str, sections: Sections, seen: frozenset[str]) -> int:
    if name in seen:  # params.yaml that names itself; refused where it is checked
        return 0
    for section, count in TOWERS.items():
        if name in _entries(sections, section):
            return count
    entries = _all(name, sections)
    below = sum(_towers(other, sections, seen | {name}) for entry in entries for other in _named(entry, SERVED))
    return below + sum(bool(_named(entry, ["reranker"])) for entry in entries)


def _needed(name: str, sections: Sections) -> set[str]:
    """`name` and every entry that it is made from, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        entries = _all(one, sections)
        if entries and one not in found:
            found.add(one)
            waiting += [other for entry in entries for other in _named(entry, NAMING)]
    return found


def _named(entry: Any, fields: Iterable[str]) -> list[str]:
    values = [entry.get(field) for field in fields] if isinstance(entry, Mapping) else []
    return [name for value in values for name in (value if isinstance(value, list | tuple) else [value]) if isinstance(name, str)]


def _all(name: str, sections: Sections) -> list[Any]:
    """The entries of that name, of which there is one at most."""
    return [entries[name] for section in MADE if name in (entries := _entries(sections, section))]


def _entries(sections: Sections, section: str) -> Mapping[str, Any]:
    value = sections.get(section)
    return value if isinstance(value, Mapping) else {}
