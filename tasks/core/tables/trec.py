"""Runs of this project, read again: TREC lines `query Q0 doc rank score tag`, a query's together and by rank."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tasks.core.stage.errors import UserError
from tasks.core.tables.schemas import RANKED


def read_run(path: Path, depth: int) -> Iterator[tuple[str, list[str]]]:
    """Each query with its `depth` best documents, in the order of the file, one query at a time."""
    query, documents = "", list[str]()
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):
                fields = line.rstrip("\n").split(" ")  # an id may hold other white space than ASCII's
                if len(fields) != 6:
                    raise UserError(f"{path}:{number}: found {len(fields)} fields, expected 6: query Q0 doc rank score tag")
                if fields[0] != query and documents:
                    yield query, documents
                    documents = []
                query = fields[0]
                if len(documents) < depth:
                    documents.append(fields[2])
    except FileNotFoundError:
        raise UserError(f"{path}: not there; run the stage that makes it") from None
    if documents:
        yield query, documents


def best_first(documents: list[str], scores: list[float]) -> list[tuple[str, float]]:
    """Documents by falling score, ties by id falling: trec_eval's order."""
    return [(doc, score) for score, doc in sorted(zip(scores, documents, strict=True), reverse=True)]


def ranked_batch(lists: list[tuple[str, list[tuple[str, float]]]]) -> pa.RecordBatch:
    """Each query's documents and scores, best first, as rows of schema RANKED."""
    rows = [(query, doc, rank, score) for query, entries in lists for rank, (doc, score) in enumerate(entries, 1)]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, RANKED, strict=True)], schema=RANKED)
