"""Example queries on which the best model beats the reference, and examples on which it loses."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.core.text.document import Text, document_text
from tasks.core.trec.ids import unescape
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


def load_examples(model: System, reference: System, split: str, seed: int, runs: Path, corpus: Path, text: Text, least: int) -> Examples:
    """Draw examples and read their texts. Grades >= `least` are relevant. Runs and documents are read once, keeping only those shown."""
    won, lost = draw_queries(model, reference, split, seed)
    query_ids = set(won + lost)
    relevant = relevant_documents(read_batches(corpus / "qrels" / f"{split}.parquet", QRELS), query_ids, least)
    questions = _texts(read_batches(corpus / "queries" / f"{split}.parquet", QUERIES, ["id", "text"]), query_ids)
    results = {system.name: ranked_first(runs / system.name / f"{split}.trec", relevant) for system in (model, reference)}

    def example(query: str) -> Example:
        sides = []
        for system in (model, reference):
            top_document, rank = results[system.name].get(query, (None, None))
            value = float(system.values[split][system.queries[split].index(query)])
            sides.append(Result(system.name, top_document, top_document in relevant[query], rank, value))
        return Example(questions.get(query, query), tuple(relevant[query][:2]), sides[0], sides[1])

    chosen = [[example(query) for query in queries] for queries in (won, lost)]
    shown = {doc for kind in chosen for e in kind for doc in (*e.relevant, e.model.document, e.reference.document) if doc}
    texts = document_texts(corpus / "documents.parquet", shown, text)
    return Examples(split, tuple(chosen[0]), tuple(chosen[1]), texts)


def relevant_documents(qrels: Iterable[pa.RecordBatch], queries: set[str], least: int) -> dict[str, list[str]]:
    """The documents of grade >= `least` for each wanted query, highest grade first, then by id."""
    rows: dict[str, list[tuple[int, str]]] = {query: [] for query in queries}
    for batch in qrels:
        for query, doc, grade in zip(*(batch[name].to_pylist() for name in ("query", "doc", "grade")), strict=True):
            if query in queries and grade >= least:
                rows[query].append((-grade, doc))
    return {query: [doc for _, doc in sorted(graded)] for query, graded in rows.items()}


def ranked_first(path: Path, relevant: Mapping[str, Sequence[str]]) -> dict[str, tuple[str | None, int | None]]:
    """For each query of `relevant` in a TREC run, the document at rank 1 and the rank of the first relevant one."""
    results: dict[str, tuple[str | None, int | None]] = {}
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            query, _, doc, rank, _, _ = map(unescape, line.split(" "))
            if query not in relevant:
                continue
            top_document, hit_rank = results.get(query, (None, None))
            results[query] = (doc if rank == "1" else top_document, hit_rank if hit_rank or doc not in relevant[query] else int(rank))
    return results


def _texts(batches: Iterable[pa.RecordBatch], query_ids: set[str]) -> dict[str, str]:
    ids = pa.array(sorted(query_ids), pa.string())
    rows = (batch.filter(pc.is_in(batch["id"], value_set=ids)).to_pylist() for batch in batches)
    return {row["id"]: row["text"] for part in rows for row in part}


def document_texts(path: Path, documents: set[str], text: Text) -> dict[str, tuple[str, str]]:
    """The title and text of the wanted documents. The text is as the systems saw it, cut to CHARACTERS."""
    ids = pa.array(sorted(documents), pa.string())
    rows = (batch.filter(pc.is_in(batch["id"], value_set=ids)).to_pylist() for batch in read_batches(path, DOCUMENTS))
    return {row["id"]: (row["title"], truncate(document_text("", row["text"], text))) for part in rows for row in part}


def truncate(text: str) -> str:
    """At most CHARACTERS characters of `text`, cut at a word boundary."""
    text = " ".join(text.split())
    return text if len(text) <= CHARACTERS else text[:CHARACTERS].rsplit(" ", 1)[0] + " …"
