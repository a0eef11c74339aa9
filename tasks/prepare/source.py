"""The records that a reader passes to the writer, as streams. Each has the place that it was read from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class At(NamedTuple):
    """A line of a file or a row of a table, counted from 1."""

    file: Path | str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Document(NamedTuple):
    at: At
    id: str
    title: str
    text: str


class Query(NamedTuple):
    """A query. `columns`: the source's own fields, by name; the failures stage groups queries by them."""

    at: At
    id: str
    text: str
    answers: list[str]
    columns: Mapping[str, str] = MappingProxyType({})


class Qrel(NamedTuple):
    at: At
    query: str
    doc: str
    grade: int
    weight: float = 1.0  # of the pair in training


class Negative(NamedTuple):
    """A document that the source itself lists as a negative of a training query."""

    at: At
    query: str
    doc: str


Documents: TypeAlias = Callable[[], Iterator[Document]]
Queries: TypeAlias = Callable[[], Iterator[Query]]
Qrels: TypeAlias = Callable[[], Iterator[Qrel]]
Negatives: TypeAlias = Callable[[], Iterator[Negative]]
Parts: TypeAlias = Callable[[], Iterator[Documents]]


@dataclass(frozen=True)
class Source:
    """A dataset as streams that can be restarted (a second pass finds both places of a duplicate).

    `queries` has one stream per split, or one under "" that serves every split. `dropped` counts records that the reader
    itself excluded, by reason. `parts`, if any: the same documents cut into parts, in order. Any process can read any part by
    itself. If an error ends the documents, the last part raises it.
    """

    documents: Documents
    queries: Mapping[str, Queries]
    qrels: Mapping[str, Qrels]
    negatives: Negatives = field(default=lambda: iter(()))
    dropped: Mapping[str, int] = field(default_factory=dict)
    name: str = "the dataset"
    parts: Parts | None = None
