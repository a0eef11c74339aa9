"""Model selection: the one rule for "the best system on dev", used by the report, search, retraining, and sweep tables.

On dev queries that are made from documents, the report and stage failures first leave out systems that use BM25
(tasks.core.metrics.lexical); the others do not.

The highest mean wins. On a tie, the simpler system wins: fewer towers to serve, then made from fewer entries of params.yaml (so it is
earlier in the graph), then listed earlier in params.yaml.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

METRIC = "nDCG@10"  # the default of report.metric
DIGITS = 10  # means that agree to this many digits differ in the order of their additions, not in their rankings
# Fields that name other entries; negatives are named after their round.
NAMING = ("init", "negatives", "round", "run", "first", "second", "encoder")
SERVED = ("run", "first", "second", "encoder")  # of these, what a reordering system needs at query time, in addition to a cross-encoder
SYSTEMS = ("rounds", "adore", "fuse", "rerank", "rescore")  # sections whose entries are systems
MADE = ("pretrain", *SYSTEMS)  # plus what they start from; no other sections, because the report depends on these (dvc.yaml)
TOWERS = {"rounds": 1, "adore": 2}  # one shared by queries and documents; one for each

Sections = Mapping[str, Any]
Name = TypeVar("Name", bound=Hashable)


def best_system(values: Mapping[str, float], sections: Sections) -> str:
    """The name with the highest value; on a tie, the simplest by `sections` (params.yaml). ValueError if there is none."""
    return best_of(values, lambda name: (*complexity(name, sections), name))


def best_of(values: Mapping[Name, float], simplicity: Callable[[Name], Any]) -> Name:
    """The key with the highest value; on a tie, the one with the lowest `simplicity`. ValueError if there is none."""
    highest = max(values.values())
    return min((name for name, value in values.items() if is_tie(value, highest)), key=simplicity)


def metric_of(sections: Sections) -> str:
    """The measure whose mean on dev decides: report.metric."""
    return str(_entries(sections, "report").get("metric", METRIC))


def least_grade(split: str, sections: Sections) -> int:
    """The lowest grade that counts as relevant in `split`: evaluate.relevance, one grade or one for each split."""
    relevance = (sections.get("evaluate") or {}).get("relevance", 1)
    return int(relevance.get(split, 1) if isinstance(relevance, dict) else relevance)


def is_tie(one: float, other: float) -> bool:
    """Whether two means are equal except for rounding."""
    return abs(one - other) < 10.0**-DIGITS


def complexity(name: str, sections: Sections) -> tuple[int, int, int]:
    """Towers that a query needs, number of params.yaml entries it is made from, place in params.yaml; BM25 first, unknown names last."""
    if name == "bm25":
        return 0, 0, 0
    places = [entry for section in SYSTEMS for entry in _entries(sections, section)]
    if name not in places:
        return sys.maxsize, 0, 0
    return _towers(name, sections, frozenset()), len(_needed(name, sections)), places.index(name)


def _towers(name: str, sections: Sections, seen: frozenset[str]) -> int:
    if name in seen:  # an entry that needs itself; refused when params.yaml is checked
        return 0
    for section, count in TOWERS.items():
        if name in _entries(sections, section):
            return count
    entries = _all(name, sections)
    inner = sum(_towers(other, sections, seen | {name}) for entry in entries for other in _named(entry, SERVED))
    return inner + sum(bool(_named(entry, ["reranker"])) for entry in entries)


def _needed(name: str, sections: Sections) -> set[str]:
    """`name` and every entry that it is made from, directly or not."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        entries = _all(current, sections)
        if entries and current not in needed:
            needed.add(current)
            waiting += [other for entry in entries for other in _named(entry, NAMING)]
    return needed


def _named(entry: Any, fields: Iterable[str]) -> list[str]:
    values = [entry.get(field) for field in fields] if isinstance(entry, Mapping) else []
    return [name for value in values for name in (value if isinstance(value, list | tuple) else [value]) if isinstance(name, str)]


def _all(name: str, sections: Sections) -> list[Any]:
    """The entries with that name; there is at most one."""
    return [entries[name] for section in MADE if name in (entries := _entries(sections, section))]


def _entries(sections: Sections, section: str) -> Mapping[str, Any]:
    value = sections.get(section)
    return value if isinstance(value, Mapping) else {}
