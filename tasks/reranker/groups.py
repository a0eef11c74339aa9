"""The batch of a step: queries, each with a positive and some negatives. Every draw is a function of (seed, epoch) or (seed, step)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.stage.draws import SAMPLING, batch_places, draw_seed
from tasks.core.tables.batching import join_batches
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import DocumentLists, SameTexts, lists_of, ranked_lists, relevant_pairs, with_same_texts
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS, QUERIES
from tasks.core.text.document import Text
from tasks.core.tokens.same_texts import near_texts
from tasks.reranker.params import Reranker

ROWS = 2**17  # rows whose texts are looked up at a time
Group = tuple[int, list[int]]  # a query, and its documents, the positive first


@dataclass(frozen=True)
class Groups:
    """The ordinals of queries that have both positives and negatives, and the lists of both.

    `known`: the documents that never count as negatives, even if the table lists them: positives, and documents with the text of one.
    """

    queries: Ints
    positives: DocumentLists
    negatives: DocumentLists
    known: DocumentLists

    def negatives_of(self, query: int) -> Ints:
        """The negatives of a query, best first."""
        listed = self.negatives.of(query)
        return listed[~np.isin(listed, self.known.of(query))]


def read_groups(corpus: Path, negatives: Path, window: tuple[int, int], text: Text, scratch: Path, *, near: Path | None = None) -> Groups:
    """Read the positives and the negatives of the training queries. UserError if no query has both.

    `near`: tokenize's same.npy of the documents; near-duplicates that it names count as having one text.
    """
    queries, documents = corpus / "queries" / "train.parquet", corpus / "documents.parquet"
    q, d = relevant_pairs(corpus / "qrels" / "train.parquet", queries, documents)
    positives = lists_of(q, d, count_rows(queries))
    near_documents = near_texts(near, d, count_rows(documents)) if near else None
    same = same_queries(queries, q), near_documents or same_documents(documents, d, text)
    known = lists_of(*with_same_texts(q, d, *same), count_rows(queries))
    hard = ranked_lists(negatives, queries, documents, window, scratch)
    groups = Groups(np.flatnonzero((positives.counts > 0) & (hard.counts > 0)), positives, hard, known)
    more = known.counts > positives.counts  # for other queries, the table has no known documents
    complete = np.array([query for query in groups.queries.tolist() if not more[query] or len(groups.negatives_of(query))], dtype=np.int64)
    if not len(complete):
        raise UserError(
            f"{negatives}: no training query has both a positive and a negative at ranks {window[0]} to {window[1]}; change window "
            "or negatives"
        )
    return replace(groups, queries=complete)


def same_queries(path: Path, ordinals: Ints) -> SameTexts:
    """Group the queries whose text equals that of one in `ordinals`."""
    return _same(lambda: read_batches(path, QUERIES, ["text"]), ordinals, Text(titles=False, separator=""))


def same_documents(path: Path, ordinals: Ints, text: Text) -> SameTexts:
    """Group the documents whose text, as the cross-encoder reads it, equals that of one in `ordinals`."""
    return _same(lambda: read_batches(path, DOCUMENTS, ["title", "text"] if text.titles else ["text"]), ordinals, text)


def _same(read: Callable[[], Iterator[pa.RecordBatch]], ordinals: Ints, text: Text) -> SameTexts:
    """Group the rows whose text equals that of one in `ordinals`. Reads twice."""
    ordinals, texts, start = np.unique(ordinals), list[pa.Array](), 0
    for batch in read():
        rows = ordinals[np.searchsorted(ordinals, start) : np.searchsorted(ordinals, start + len(batch))] - start
        texts.append(_texts(batch.take(pa.array(rows)), text))
        start += len(batch)
    wanted = pa.chunked_array(texts, pa.large_string()).unique()
    members, groups, start = list[Ints](), list[Ints](), 0
    for table in join_batches(read(), ROWS):
        group = pc.index_in(_texts(table, text), value_set=wanted).fill_null(-1).to_numpy().astype(np.int64)
        places = np.flatnonzero(group >= 0)
        members.append(places + start)
        groups.append(group[places])
        start += len(table)
    member = np.concatenate([ordinals[:0], *members])
    _, first, place = np.unique(np.concatenate([ordinals[:0], *groups]), return_index=True, return_inverse=True)
    return SameTexts(member, member[first[place]])


def _texts(rows: pa.RecordBatch | pa.Table, text: Text) -> pa.Array | pa.ChunkedArray:
    """What `document_text` gives for each row."""
    body = rows["text"].cast(pa.large_string())
    if not text.titles:
        return body
    title = rows["title"].cast(pa.large_string())
    joined = pc.binary_join_element_wise(title, body, pa.scalar(text.separator, pa.large_string()))
    return pc.if_else(pc.equal(title, ""), body, joined)


def draw_groups(groups: Groups, params: Reranker, step: int) -> list[Group]:
    """Draw the groups of a step: queries, each with its documents, the positive first. If a query has too few negatives, some repeat."""
    total, size = len(groups.queries), min(params.batch_queries, len(groups.queries))
    rng = np.random.default_rng(draw_seed(params.seed, SAMPLING, step))
    drawn = []
    for query in groups.queries[batch_places(total, size, params.seed, step)].tolist():
        positives, negatives = groups.positives.of(query), groups.negatives_of(query)
        hard = rng.choice(negatives, size=params.hard_negatives, replace=len(negatives) < params.hard_negatives)
        drawn.append((query, [int(rng.choice(positives)), *hard.tolist()]))
    return drawn
