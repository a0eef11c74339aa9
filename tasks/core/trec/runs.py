"""Write and read this project's runs: TREC lines `query Q0 doc rank score tag`, grouped by query and ordered by rank."""

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.files import new_file
from tasks.core.plurals import counted
from tasks.core.tables.schemas import RANKED
from tasks.core.trec.ids import NEEDED, escape, unescape


def write_run(path: Path, batches: Iterable[pa.RecordBatch], tag: str) -> int:
    """Write `batches` (schema RANKED), completely or not at all, as TREC lines `query Q0 doc rank score tag`; returns the line count.

    Scores are the shortest decimals that round-trip to the same float32, so trec_eval, which sorts by score and then by
    descending id, sees the same order. Ids with white space are escaped (tasks.core.trec.ids). UserError for an empty id.
    """
    lines = 0
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as handle:
        for batch in batches:
            query, doc = (_written(batch[name], path) for name in ("query", "doc"))
            fields = [query, "Q0", doc, batch["rank"].cast(pa.string()), batch["score"].cast(pa.string()), tag]
            handle.writelines(line + "\n" for line in pc.binary_join_element_wise(*fields, " ").to_pylist())
            lines += len(batch)
    return lines


def without_identical_ids(batches: Iterable[pa.RecordBatch], depth: int | None = None) -> Iterator[pa.RecordBatch]:
    """Ranked lists (schema RANKED, grouped by query) without the document that has the query's id, re-ranked without gaps, at most
    `depth` ranks: BEIR's `ignore_identical_ids`.
    """
    last, left_out = None, 0  # the last query so far, and how many of its rows were excluded
    for batch in batches:
        if not len(batch):
            continue
        queries, is_own = batch["query"], pc.equal(batch["query"], batch["doc"]).to_numpy(zero_copy_only=False)
        begins = np.concatenate([[queries[0].as_py() != last], pc.not_equal(queries[1:], queries[:-1]).to_numpy(zero_copy_only=False)])
        own_before = np.cumsum(is_own) - is_own + left_out
        starts = np.flatnonzero(begins)
        base = np.concatenate([[0], own_before[starts]])[np.cumsum(begins)]
        removed = own_before - base
        last, left_out = queries[-1].as_py(), int(removed[-1] + is_own[-1])
        ranks = batch["rank"].to_numpy() - removed
        is_kept = ~is_own if depth is None else ~is_own & (ranks <= depth)
        column, field = batch.schema.get_field_index("rank"), batch.schema.field("rank")
        yield batch.set_column(column, field, pa.array(ranks, field.type)).filter(pa.array(is_kept))


def _written(ids: pa.Array, path: Path) -> pa.Array:
    if pc.any(pc.equal(ids, "")).as_py():
        raise UserError(f"{path}: found an empty id, which a TREC run cannot contain, expected a non-empty one; fix it in the source")
    return pa.array(map(escape, ids.to_pylist())) if pc.any(pc.match_substring_regex(ids, NEEDED)).as_py() else ids


def read_run(path: Path, depth: int = sys.maxsize) -> Iterator[tuple[str, list[str]]]:
    """Each query with its `depth` best documents, in file order, one query at a time."""
    for query, documents, _ in _read_lists(path, depth):
        yield query, documents


def first_results(path: Path, relevant: Mapping[str, Container[str]]) -> dict[str, tuple[str, int | None]]:
    """For each query of `relevant` in a run: the document at rank 1, and the rank of the first relevant one."""
    lists = ((query, documents) for query, documents in read_run(path) if query in relevant)
    return {
        query: (documents[0], next((rank for rank, doc in enumerate(documents, 1) if doc in relevant[query]), None))
        for query, documents in lists
    }


def read_scored_run(path: Path, depth: int = sys.maxsize) -> Iterator[tuple[str, list[str], npt.NDArray[np.float64]]]:
    """`read_run` with scores [N], float32 values as written. UserError for a score that is not a finite number."""
    for query, documents, written in _read_lists(path, depth):
        try:
            scores = np.array(written).astype(np.float32).astype(np.float64)
        except ValueError:
            scores = np.array([_number(score) for score in written])
        if not np.isfinite(scores).all():
            place = int(np.argmin(np.isfinite(scores)))
            raise UserError(
                f"{path}: query {query}, document {documents[place]}: found the score {written[place]!r}, expected a finite number; "
                f"re-run the stage that makes this file"
            )
        yield query, documents, scores


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _read_lists(path: Path, depth: int) -> Iterator[tuple[str, list[str], list[str]]]:
    query, documents, scores = "", list[str](), list[str]()
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):
                fields = line.rstrip("\n").split(" ")  # an id may contain non-ASCII white space
                if len(fields) != 6:
                    raise UserError(
                        f"{path}:{number}: found {counted(len(fields), 'fields')}, expected 6: query Q0 doc rank score tag; "
                        "re-run the stage that makes this file"
                    )
                name = unescape(fields[0])
                if name != query and documents:
                    yield query, documents, scores
                    documents, scores = [], []
                query = name
                if len(documents) < depth:
                    documents.append(unescape(fields[2]))
                    scores.append(fields[4])
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run the stage that makes it") from None
    if documents:
        yield query, documents, scores


def best_first(documents: list[str], scores: list[float]) -> list[tuple[str, float]]:
    """Documents by descending score, then by descending id: trec_eval's order."""
    return [(doc, score) for score, doc in sorted(zip(scores, documents, strict=True), reverse=True)]


def ranked_batch(lists: list[tuple[str, list[tuple[str, float]]]]) -> pa.RecordBatch:
    """Each query's documents and scores, best first, as rows of schema RANKED."""
    return batch_of_rows([(query, doc, rank, score) for query, entries in lists for rank, (doc, score) in enumerate(entries, 1)])


def batch_of_rows(rows: list[tuple[str, str, int, float]]) -> pa.RecordBatch:
    """Rows of schema RANKED (query, document, rank, score) as a batch."""
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, RANKED, strict=True)], schema=RANKED)
