"""Documents that several systems rank high and nobody judged. They may be relevant, but every measure counts them as wrong.

Unjudged does not mean irrelevant: of MS MARCO's passages that a retriever ranks high and nobody labelled, about 70% were found
relevant when people read them (Qu et al.: RocketQA, NAACL 2021, arXiv:2010.08191).
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.core.tables.documents import shortened
from tasks.core.trec.runs import read_run
from tasks.failures.worst import CHARACTERS

HEADER = ("query-id", "corpus-id", "score", "ranks", "query", "document")  # score is for a judge to fill in


class Suspect(NamedTuple):
    """A query and an unjudged document, with the rank that each system gives it."""

    query: str
    doc: str
    ranks: Mapping[str, int]

    @property
    def weight(self) -> float:
        """Sum of reciprocal ranks."""
        return sum(1 / rank for rank in self.ranks.values())


def suspects(runs: Mapping[str, Path], judged: Mapping[str, Iterable[str]], *, depth: int, least: int, most: int) -> list[Suspect]:
    """The `most` unjudged pairs of judged queries that at least `least` systems rank in their first `depth`, highest weight first."""
    ranks: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    known = {query: frozenset(docs) for query, docs in judged.items()}
    for name, path in runs.items():
        for query, docs in read_run(path, depth):
            for rank, doc in enumerate(docs, 1):
                if query in known and doc not in known[query]:
                    ranks[query, doc][name] = rank
    candidates = [Suspect(query, doc, systems) for (query, doc), systems in ranks.items() if len(systems) >= least]
    return sorted(candidates, key=lambda suspect: (-suspect.weight, suspect.query, suspect.doc))[:most]


def write_suspects(path: Path, pairs: Sequence[Suspect], questions: Mapping[str, str], documents: Mapping[str, tuple[str, str]]) -> None:
    """Write a CSV file in which people fill in `score`; `retemper judgments` reads it. Long texts are shortened."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(HEADER)
        for suspect in pairs:
            ranks = ", ".join(f"{name} {rank}" for name, rank in suspect.ranks.items())
            question, document = shortened(questions[suspect.query], CHARACTERS), shortened(" ".join(documents[suspect.doc]), CHARACTERS)
            writer.writerow([suspect.query, suspect.doc, "", ranks, question, document])
