"""Runs of this project, written and read again: TREC lines `query Q0 doc rank score tag`, a query's together and by rank."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import new_file
from tasks.core.tables.schemas import RANKED


def write_run(path: Path, batches: Iterable[pa.RecordBatch], tag: str) -> int:
    """Write `batches` (schema RANKED), whole or not at all, as TREC lines `query Q0 doc rank score tag`; returns how many.

    Scores are the shortest decimals that give the same float32 again, so trec_eval, which sorts by score and then by
    falling id, finds the same order. UserError for an id that a TREC line cannot hold.
    """
    lines = 0
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as handle:
        for batch in batches:
            for name in ("query", "doc"):
                _refuse_blanks(batch[name], path)
            fields = [batch["query"], "Q0", batch["doc"], batch["rank"].cast(pa.string()), batch["score"].cast(pa.string()), tag]
            handle.writelines(line + "\n" for line in pc.binary_join_element_wise(*fields, " ").to_pylist())
            lines += len(batch)
    return lines


def without_identical_ids(batches: Iterable[pa.RecordBatch], depth: int | None = None) -> Iterator[pa.RecordBatch]:
    """Ranked lists (schema RANKED, a query's rows together) less each query's document of its own id, ranks closed up, `depth` of them
    at most: BEIR's `ignore_identical_ids`.
    """
    last, left_out = None, 0  # the last query so far, and how many of its rows were left out
    for batch in batches:
        if not len(batch):
            continue
        queries, own = batch["query"], pc.equal(batch["query"], batch["doc"]).to_numpy(zero_copy_only=False)
        begins = np.concatenate([[queries[0].as_py() != last], pc.not_equal(queries[1:], queries[:-1]).to_numpy(zero_copy_only=False)])
        above = np.cumsum(own) - own + left_out
        starts = np.flatnonzero(begins)
        base = np.concatenate([[0], above[starts]])[np.cumsum(begins)]
        gone = above - base
        last, left_out = queries[-1].as_py(), int(gone[-1] + own[-1])
        ranks = batch["rank"].to_numpy() - gone
        kept = ~own if depth is None else ~own & (ranks <= depth)
        column, field = batch.schema.get_field_index("rank"), batch.schema.field("rank")
        yield batch.set_column(column, field, pa.array(ranks, field.type)).filter(pa.array(kept))


def _refuse_blanks(ids: pa.Array, path: Path) -> None:
    bad = ids.filter(pc.match_substring_regex(ids, r"^$|\s"))
    if len(bad):
        raise UserError(
            f"{path}: found the id {bad[0].as_py()!r}, expected ids without blanks, which TREC runs cannot hold; rename it in the source"
        )


def read_run(path: Path, depth: int = sys.maxsize) -> Iterator[tuple[str, list[str]]]:
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
