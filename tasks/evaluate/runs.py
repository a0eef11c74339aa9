"""Ranked lists: written as TREC runs while they pass by, and cut into queries for the measures."""

import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.stage.errors import UserError
from tasks.core.stage.files import new_file
from tasks.evaluate.measures import Qrels

QUERY_BLOCK = 512  # queries that are measured at once
ASCII_WORDS = re.compile(r"[^ \t\n\r\f\v]+")


def write_run(path: Path, batches: Iterable[pa.RecordBatch], tag: str) -> Iterator[pa.RecordBatch]:
    """Pass `batches` (schema RANKED) on, writing each as TREC lines `query Q0 doc rank score tag`; the file is there at the end.

    Scores are the shortest decimals that give the same float32 again, so trec_eval, which sorts by score and then by
    falling id, finds the same order. UserError for an id that a TREC line cannot hold.
    """
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as handle:
        for batch in batches:
            for name in ("query", "doc"):
                _refuse_blanks(batch[name], path)
            fields = [batch["query"], "Q0", batch["doc"], batch["rank"].cast(pa.string()), batch["score"].cast(pa.string()), tag]
            handle.writelines(line + "\n" for line in pc.binary_join_element_wise(*fields, " ").to_pylist())
            yield batch


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


def rankings(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, list[str]]]:
    """Document ids, best first, of QUERY_BLOCK queries at a time; a query's rows stand together, by rank."""
    block: dict[str, list[str]] = {}
    for batch in batches:
        for query, doc in zip(batch["query"].to_pylist(), batch["doc"].to_pylist(), strict=True):
            if query not in block and len(block) == QUERY_BLOCK:
                yield block
                block = {}
            block.setdefault(query, []).append(doc)
    if block:
        yield block


def read_trec_run(path: Path) -> dict[str, list[str]]:
    """Any TREC run file (.gz too), whole in memory, ordered as trec_eval orders it: float32 score, then id, both falling."""
    scored: dict[str, dict[str, np.float32]] = {}
    for number, (query, _, doc, _, score, _) in _lines(path, 6, "query Q0 doc rank score tag"):
        ranked = scored.setdefault(query, {})
        if doc in ranked:
            raise UserError(f"{path}:{number}: found document {doc} of query {query} again, expected each once; keep its best line")
        try:
            ranked[doc] = np.float32(score)
        except ValueError:
            ranked[doc] = np.float32("nan")
        if np.isnan(ranked[doc]):
            raise UserError(f"{path}:{number}: found the score {score!r}, expected a number")
    return {query: sorted(ranked, key=lambda doc: (ranked[doc], doc), reverse=True) for query, ranked in scored.items()}


def read_trec_qrels(path: Path) -> Qrels:
    """Any TREC qrels file (.gz too), with queries that have no relevant document."""
    qrels: Qrels = {}
    for number, (query, _, doc, written) in _lines(path, 4, "query iteration doc grade"):
        try:
            grade = int(written)
        except ValueError:
            raise UserError(f"{path}:{number}: found the grade {written!r}, expected a whole number") from None
        if qrels.setdefault(query, {}).setdefault(doc, grade) != grade:
            raise UserError(f"{path}:{number}: found grade {grade} for {query} {doc}, and {qrels[query][doc]} before; keep one of them")
    return qrels


def _lines(path: Path, width: int, expected: str) -> Iterator[tuple[int, list[str]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as handle:
            for number, line in enumerate(handle, 1):
                fields = ASCII_WORDS.findall(line)  # an id may hold other spaces
                if len(fields) == width:
                    yield number, fields
                elif fields:
                    raise UserError(f"{path}:{number}: found {len(fields)} fields, expected {width}: {expected}")
    except FileNotFoundError:
        raise UserError(f"{path}: not there; name an existing file") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: not readable ({error}); expected UTF-8 text, gzip where the name ends in .gz") from None
