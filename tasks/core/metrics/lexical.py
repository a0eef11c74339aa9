"""Which systems can be compared on queries that are made from documents: not those that use BM25, which such queries favor.

Apart from tasks.core.metrics.selection, since query towers are trained again if that changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

DERIVED = ("fuse", "rerank", "rescore")  # sections whose systems are made from the lists of others
LISTS = ("run", "first", "second")  # their fields that name these


def without_bm25(names: Iterable[str], sections: Mapping[str, Any]) -> list[str]:
    """The names that neither are bm25 nor use its lists, directly or not; all names if none is left."""
    names = list(names)
    return [name for name in names if not _uses_bm25(name, sections)] or names


def _uses_bm25(name: str, sections: Mapping[str, Any]) -> bool:
    """There are no cycles: the check of params.yaml refuses them."""
    entries = [named[name] for section in DERIVED if name in (named := sections.get(section) or {})]
    return name == "bm25" or any(_uses_bm25(entry[key], sections) for entry in entries for key in LISTS if key in entry)
