"""The dependencies between entries of params.yaml, each entry written `section.name`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

ENCODERS = ("encoders", "pretrain", "rounds", "adore")  # sections whose entries are encoders, one namespace with `base`
NEGATIVES = ("mine", "mix", "teacher")  # sections whose entries are negatives, one namespace with checks.GIVEN_NEGATIVES
ORDERED = ("fuse", "rerank", "rescore")  # sections whose entries are made from other systems' runs
RUNS = ("rounds", "adore", *ORDERED)  # sections whose entries have a run
# By section: the fields that name an entry, and the sections where that entry may be.
FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "pretrain": {"init": ENCODERS},
    "rounds": {"init": ENCODERS, "negatives": NEGATIVES},
    "mix": {"first": NEGATIVES, "second": NEGATIVES},
    "rerankers": {"negatives": NEGATIVES},
    "teacher": {"negatives": NEGATIVES, "reranker": ("rerankers",)},
    "adore": {"round": ("rounds",), "negatives": NEGATIVES},
    "fuse": {"first": RUNS, "second": RUNS},
    "rerank": {"run": RUNS, "reranker": ("rerankers",)},
    "rescore": {"run": RUNS, "round": ("rounds",), "encoder": ("rounds", "adore")},
    "study": {"round": ("rounds",)},
    "analyses": {"round": ("rounds",), "negatives": NEGATIVES},
}
ASKED = ("study.", "analyses.")
SECTIONS = ("encoders", "mine", *FIELDS)
# Emptied by a run of given encoders (an evaluation, a preview, a retraining from a champion) before it sets entries of its own.
EMPTIED = tuple(section for section in SECTIONS if section not in ("encoders", "rounds"))

Needs = Mapping[str, Sequence[str]]


def needs(sections: Mapping[str, Any]) -> Needs:
    """The entries that each entry needs. References to anything but an entry (base, bm25, unknown names) are left out."""
    graph = {f"{section}.{name}": list[str]() for section in SECTIONS for name in entries(sections, section)}
    for section, fields in FIELDS.items():
        for name, entry in entries(sections, section).items():
            for field, owners in fields.items():
                reference = entry.get(field)
                graph[f"{section}.{name}"] += [f"{owner}.{reference}" for owner in owners if reference in entries(sections, owner)]
    for name in entries(sections, "mine"):
        graph[f"mine.{name}"].append(f"rounds.{name}")
    return graph


def with_needs(needs: Needs, wanted: Collection[str]) -> set[str]:
    """`wanted`, and all that they need, directly or indirectly."""
    closure, waiting = set[str](), list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in closure:
            closure.add(name)
            waiting += needs.get(name, [])
    return closure


def keep_needed(sections: Mapping[str, Any], systems: Collection[str]) -> dict[str, Any]:
    """The sections without entries that none of `systems` (rounds, entries of adore, fusions) needs.

    An entry of study or analyses stays if all that it needs does.
    """
    graph = needs(sections)
    kept_names = with_needs(graph, [name for section in RUNS for system in systems if (name := f"{section}.{system}") in graph])
    kept_names |= {name for name, needed in graph.items() if name.startswith(ASKED) and kept_names.issuperset(needed)}
    return {
        section: {name: entry for name, entry in entries(sections, section).items() if f"{section}.{name}" in kept_names}
        if section in SECTIONS
        else value
        for section, value in sections.items()
    }


def find_cycle(needs: Needs) -> list[str]:
    """A path through `needs` that ends where it begins, or an empty list. Names that are not keys end a path."""
    visited: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in visited:
            return []
        for needed in needs.get(name, []):
            if cycle := walk(needed, [*path, name]):
                return cycle
        visited.add(name)
        return []

    return next((cycle for name in needs if (cycle := walk(name, []))), [])


def entries(sections: Mapping[str, Any], section: str) -> dict[Any, Any]:
    """The entries of a section; empty if it is missing or not a mapping."""
    value = sections.get(section)
    return value if isinstance(value, dict) else {}
