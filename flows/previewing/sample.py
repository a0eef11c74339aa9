"""Draw a sample of a prepared corpus, in the same tables: some queries, their relevant documents, and other documents up to a number.

Everything is chosen by hashes of ids, so a larger sample of the same data contains nearly all of a smaller one. Memory grows with the
sample and the judgments, not with the documents.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.files import new_folder
from tasks.core.tables.parquet import count_rows, read_batches, read_table, write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.core.tables.weights import WEIGHTS

SHARES = {"dev": 20, "train": 2}  # documents of the sample per query of a split
ANSWERS = {"dev": 10, "train": 1}  # most relevant documents that a query adds to the sample
LEAST = 200  # documents; with fewer, there are fewer than ten dev queries
WEIGHTED = pa.schema([*QRELS, ("weight", pa.float32())])

Judged = Mapping[str, Sequence[tuple[str, int]]]  # documents and grades by query


@dataclass(frozen=True)
class Part:
    """How many were drawn, and from how many."""

    drawn: int
    all: int


@dataclass(frozen=True)
class Sample:
    """The numbers of what was drawn. `held_out`: dev queries were drawn from train, because the data has no dev."""

    documents: Part
    queries: Mapping[str, Part]
    held_out: bool


def draw(corpus: Path, weights: Path, documents: int, *, to: Path, trains: bool) -> Sample:
    """Write a sample of `documents` documents to the folder `to`, in the form of `dataset.source: parquet:`.

    There is one dev query for every 20 documents, with at most ten relevant documents, highest grades first, and one train query for every
    two documents, with one relevant document. The rest are other documents. Judgments of other documents are left out. Without `trains`,
    train is left out. Raises UserError if no dev query can be drawn.
    """
    judged = {split: _judged(corpus / f"qrels/{split}.parquet") for split in SHARES}
    pools = {"dev": _ordered(judged["dev"]), "train": _ordered(judged["train"]) if trains else []}
    held_out = not pools["dev"] and bool(pools["train"])
    if held_out:
        share = min(documents // SHARES["dev"], len(pools["train"]) // 2)
        pools, judged = {"dev": pools["train"][:share], "train": pools["train"][share:]}, dict.fromkeys(SHARES, judged["train"])
    drawn = {split: pools[split][: documents // share] for split, share in SHARES.items()}
    if trains and not drawn["dev"]:
        raise UserError(
            f"{corpus}: found neither dev nor two train queries with relevant documents, expected some to measure on (test is for the "
            "final figure); add dev queries, or have some made from documents: queries: pseudo in params.yaml (docs/data.md)"
        )
    answers = {doc for split, queries in drawn.items() for query in queries for doc in _best(judged[split][query], ANSWERS[split])}
    chosen = answers | set(_others(corpus / "documents.parquet", documents - len(answers), answers))
    pair_weights = _weights(weights) if drawn["train"] else {}
    with new_folder(to) as out:
        for folder in ("queries", "qrels") if any(drawn.values()) else ():
            (out / folder).mkdir()
        row_count = write_table(out / "documents.parquet", DOCUMENTS, _rows(corpus / "documents.parquet", chosen))
        for split, queries in drawn.items():
            if queries:
                source = "train" if held_out else split
                write_table(out / f"queries/{split}.parquet", QUERIES, [_texts(corpus / f"queries/{source}.parquet", queries)])
                write_table(out / f"qrels/{split}.parquet", WEIGHTED, [_qrels(queries, judged[split], chosen, pair_weights=pair_weights)])
    counts = {split: Part(len(queries), len(pools[split])) for split, queries in drawn.items()}
    return Sample(Part(row_count, count_rows(corpus / "documents.parquet")), counts, held_out)


def _key(record: str) -> bytes:
    return blake2b(record.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _ordered(judged: Judged) -> list[str]:
    """The queries with relevant documents, in the order of their hashes."""
    return sorted((query for query, docs in judged.items() if any(grade > 0 for _, grade in docs)), key=lambda query: (_key(query), query))


def _best(docs: Sequence[tuple[str, int]], most: int) -> list[str]:
    """The `most` relevant documents with the highest grades; among equal grades, those with the lowest hashes."""
    relevant = sorted((-grade, _key(doc), doc) for doc, grade in docs if grade > 0)
    return [doc for _, _, doc in relevant[:most]]


def _judged(path: Path) -> Judged:
    by_query = defaultdict[str, list[tuple[str, int]]](list)
    for batch in read_batches(path, QRELS) if path.exists() else ():
        for query, doc, grade in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            by_query[query].append((doc, grade))
    return by_query


def _others(path: Path, count: int, answers: Collection[str]) -> list[str]:
    """The ids of the `count` documents with the lowest hashes, without `answers`."""
    ids = (doc for batch in read_batches(path, DOCUMENTS, ["id"]) for doc in batch["id"].to_pylist() if doc not in answers)
    return [doc for _, doc in heapq.nsmallest(count, ((_key(doc), doc) for doc in ids))]


def _rows(path: Path, chosen: Collection[str]) -> Iterator[pa.RecordBatch]:
    chosen_ids = pa.array(sorted(chosen), pa.string())
    for batch in read_batches(path, DOCUMENTS):
        yield batch.filter(pc.is_in(batch["id"], chosen_ids))


def _texts(path: Path, queries: Collection[str]) -> pa.Table:
    table = read_table(path, QUERIES)
    return table.filter(pc.is_in(table["id"], pa.array(queries, pa.string())))


def _qrels(queries: Sequence[str], judged: Judged, chosen: Collection[str], *, pair_weights: Mapping[tuple[str, str], float]) -> pa.Table:
    rows = [(query, doc, grade, pair_weights.get((query, doc), 1.0)) for query in queries for doc, grade in judged[query] if doc in chosen]
    return pa.table([pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), WEIGHTED, strict=True)], WEIGHTED)


def _weights(path: Path) -> dict[tuple[str, str], float]:
    """The training weights of pairs whose weight is not 1."""
    if not path.exists():
        return {}
    table = read_table(path, WEIGHTS)
    return dict(zip(zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True), table["weight"].to_pylist(), strict=True))
