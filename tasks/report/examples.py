"""Example queries on which the best model beats the reference, and examples on which it loses."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.metrics.measures import read_qrels
from tasks.core.metrics.qrels import relevant_documents
from tasks.core.tables.documents import shortened, texts_of
from tasks.core.tables.parquet import read_batches, read_table
from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.core.trec.runs import first_results
from tasks.report.systems import System

SHOWN = 5  # examples of each kind
CHARACTERS = 320  # shown of a document's text


@dataclass(frozen=True)
class Result:
    """One system's result: the document at rank 1 (None: nothing found), whether it is relevant, and the rank of the first relevant one."""

    system: str
    document: str | None
    relevant: bool
    rank: int | None
    value: float


@dataclass(frozen=True)
class Example:
    """One query. Documents are ids; their texts are in `Examples.texts`."""

    query: str
    relevant: tuple[str, ...]
    model: Result
    reference: Result


@dataclass(frozen=True)
class Examples:
    """Examples of both kinds. `texts`: (title, text) of every document in them."""

    split: str
    won: tuple[Example, ...]
    lost: tuple[Example, ...]
    texts: Mapping[str, tuple[str, str]]


def draw_queries(model: System, reference: System, split: str, seed: int) -> tuple[list[str], list[str]]:
    """Sample up to SHOWN ids of queries won, and of queries lost, uniformly by `seed`."""
    differences = model.values[split] - reference.values[split]
    pick = random.Random(seed)
    kinds = []
    for sign in (1, -1):
        pool = [query for query, value in zip(model.queries[split], sign * differences, strict=True) if value > 1e-9]
        kinds.append(sorted(pick.sample(pool, min(SHOWN, len(pool)))))
    return kinds[0], kinds[1]


def load_examples(model: System, reference: System, split: str, seed: int, runs: Path, corpus: Path, least: int) -> Examples:
    """Draw examples and read their texts. Grades >= `least` are relevant. Runs and documents are read once, keeping only those shown."""
    won, lost = draw_queries(model, reference, split, seed)
    query_ids = set(won + lost)
    relevant = relevant_documents(read_qrels(read_table(corpus / "qrels" / f"{split}.parquet", QRELS)), query_ids, least)
    questions = _texts(read_batches(corpus / "queries" / f"{split}.parquet", QUERIES, ["id", "text"]), query_ids)
    results = {system.name: first_results(runs / system.name / f"{split}.trec", relevant) for system in (model, reference)}

    def example(query: str) -> Example:
        sides = []
        for system in (model, reference):
            top_document, rank = results[system.name].get(query, (None, None))
            value = float(system.values[split][system.queries[split].index(query)])
            sides.append(Result(system.name, top_document, top_document in relevant[query], rank, value))
        return Example(questions.get(query, query), tuple(relevant[query][:2]), sides[0], sides[1])

    chosen = [[example(query) for query in queries] for queries in (won, lost)]
    shown = {doc for kind in chosen for e in kind for doc in (*e.relevant, e.model.document, e.reference.document) if doc}
    found = texts_of(corpus / "documents.parquet", shown)
    texts = {doc: (title, shortened(body, CHARACTERS)) for doc, (title, body) in found.items()}
    return Examples(split, tuple(chosen[0]), tuple(chosen[1]), texts)


def _texts(batches: Iterable[pa.RecordBatch], query_ids: set[str]) -> dict[str, str]:
    ids = pa.array(sorted(query_ids), pa.string())
    rows = (batch.filter(pc.is_in(batch["id"], value_set=ids)).to_pylist() for batch in batches)
    return {row["id"]: row["text"] for part in rows for row in part}
