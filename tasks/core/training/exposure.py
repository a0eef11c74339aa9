"""The data that a training used: the records of each step by role, replayed from (seed, step) without the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.core.tables.ids import Ints

QUERY, POSITIVE, HARD, IN_BATCH = "query", "positive", "hard negative", "in-batch negative"
TEXT = "text"  # of a pre-training
HELD_QUERY, HELD_DOCUMENT = "validation query", "validation document"  # they choose the step whose weights are kept
SEARCHED = "searched"  # every step's search ranks it; whether it came among the first depends on the weights of that step
OF_QUERIES = (QUERY, HELD_QUERY)  # roles of queries; all others are of documents

Roles = Mapping[str, Ints]  # ordinals of queries or documents, by role; one may come more than once


@dataclass(frozen=True)
class Replay:
    """A training's records. `steps` gives the number of each step, from 0, and its roles; `beside` has roles that belong to no step."""

    documents: Path  # Parquet file of the ids that ordinals count
    queries: Path | None
    total: int
    steps: Iterator[tuple[int, Roles]]
    beside: Roles = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One record's part in a training: its first and last step, and in how many it was; None for a role that belongs to no step."""

    ordinal: int
    role: str
    first: int | None = None
    last: int | None = None
    count: int | None = None


def parts_of(replay: Replay, queries: Ints, documents: Ints) -> list[Part]:
    """The parts of the wanted queries and documents (ordinals), in order of role and ordinal."""
    parts: dict[tuple[str, int], Part] = {}

    def hits(roles: Roles) -> Iterator[tuple[str, int]]:
        for role, ordinals in roles.items():
            wanted = queries if role in OF_QUERIES else documents
            yield from ((role, ordinal) for ordinal in wanted[np.isin(wanted, ordinals)].tolist())

    for step, roles in replay.steps:
        for role, ordinal in hits(roles):
            previous = parts.get((role, ordinal), Part(ordinal, role, step, step, 0))
            parts[role, ordinal] = Part(ordinal, role, previous.first, step, (previous.count or 0) + 1)
    parts |= {(role, ordinal): Part(ordinal, role) for role, ordinal in hits(replay.beside)}
    return [parts[key] for key in sorted(parts)]
