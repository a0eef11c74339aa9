"""Documents by query, as training reads them: judgments and tables of negatives as lists of ordinals.

A table of negatives (schema RANKED) is read GROUP rows at a time and its lists stay on disk, so memory does not grow with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.tables.ids import Ints, concat_ranges, ordinals
from tasks.core.tables.parquet import count_rows, read_batches, read_table
from tasks.core.tables.schemas import QRELS, RANKED

Floats = npt.NDArray[np.float32]
GROUP = 2**22  # rows; all ids of the corpus are read once per group


@dataclass(frozen=True)
class DocumentLists:
    """A list of documents for each query, flat: query q has values[offsets[q]:offsets[q + 1]]; `scores`, if any, are parallel."""

    offsets: Ints
    values: npt.NDArray[Any]  # ordinals of documents
    scores: Floats | None = None

    @property
    def counts(self) -> Ints:
        return np.diff(self.offsets)

    def of(self, query: int) -> Ints:
        return self.values[self.offsets[query] : self.offsets[query + 1]].astype(np.int64)

    def scores_of(self, query: int) -> Floats:
        assert self.scores is not None, "lists without scores"
        return self.scores[self.offsets[query] : self.offsets[query + 1]]


def lists_of(queries: Ints, documents: Ints, count: int, scores: Floats | None = None) -> DocumentLists:
    """Pairs (query, document), in order, as one list per query 0..count-1."""
    order = np.argsort(queries, kind="stable")
    return DocumentLists(_offsets(np.bincount(queries, minlength=count)), documents[order], None if scores is None else scores[order])


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], counts.cumsum()])


def known_pairs(table: pa.Table, queries: Path, documents: Path) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Query and document ordinals of the rows of `table` whose ids are both in the Parquet files, and a mask of these rows."""
    q, d = ordinals(table["query"], queries), ordinals(table["doc"], documents)
    known = (q >= 0) & (d >= 0)
    return q[known], d[known], known


def relevant_pairs(qrels: Path, queries: Path, documents: Path) -> tuple[Ints, Ints]:
    """Query and document ordinals of every judgment with a grade above 0, in file order."""
    return graded_pairs(qrels, queries, documents)[:2]


def graded_pairs(qrels: Path, queries: Path, documents: Path) -> tuple[Ints, Ints, Ints]:
    """`relevant_pairs`, and their grades."""
    judged = read_table(qrels, QRELS)
    judged = judged.filter(pc.greater(judged["grade"], 0))
    q, d, known = known_pairs(judged, queries, documents)
    return q, d, judged["grade"].to_numpy()[known].astype(np.int64)


@dataclass(frozen=True)
class SameTexts:
    """All documents (or queries) with the same text as any of some given ones, which are included; core.text.same_texts finds them.

    `members` [M] are their ordinals, sorted; `first` [M] has, for each member, the first member with its text.
    """

    members: Ints
    first: Ints

    @property
    def repeated(self) -> bool:
        """Whether any two have the same text."""
        return bool((self.members != self.first).any())

    def firsts_of(self, ordinals: Ints) -> Ints:
        """For each of `ordinals`, the first member with the same text; all of them must be members."""
        return self.first[np.searchsorted(self.members, ordinals)]


def with_same_texts(queries: Ints, documents: Ints, same_query: SameTexts, same_document: SameTexts) -> tuple[Ints, Ints]:
    """The given pairs (query, document), and all other pairs of the same two texts, each pair once; sorted if any text repeats.

    A document with the text of a positive is not a negative, whatever its id. Queries with the same text share their positives.
    `same_query` and `same_document` are those with the texts of `queries` and of `documents`.
    """
    if not same_query.repeated and not same_document.repeated:
        return queries, documents
    first = np.unique(_keys(queries, documents, same_query, same_document))
    query, document = np.divmod(first, int(same_document.first.max(initial=0)) + 1)
    query, document = _members(query, document, same_query)
    document, query = _members(document, query, same_document)
    order = np.lexsort((document, query))
    return query[order], document[order]


def grades_of(pairs: tuple[Ints, Ints], judged: tuple[Ints, Ints], grades: Ints, same_query: SameTexts, same_document: SameTexts) -> Ints:
    """The grade of each of `pairs` (`with_same_texts` of `judged`): the highest grade of a judged pair with the same two texts."""
    known, place = np.unique(_keys(*judged, same_query, same_document), return_inverse=True)
    highest = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(highest, place, grades)
    return highest[np.searchsorted(known, _keys(*pairs, same_query, same_document))]


def _keys(queries: Ints, documents: Ints, same_query: SameTexts, same_document: SameTexts) -> Ints:
    """A number for each pair, the same for pairs of the same two texts."""
    return same_query.firsts_of(queries) * (int(same_document.first.max(initial=0)) + 1) + same_document.firsts_of(documents)


def _members(first: Ints, partners: Ints, same: SameTexts) -> tuple[Ints, Ints]:
    """Each of `first` replaced by all ordinals with the same text; `partners` is repeated to match."""
    order = np.argsort(same.first, kind="stable")
    begin, end = (np.searchsorted(same.first, first, side, sorter=order) for side in ("left", "right"))
    count = end - begin
    return same.members[order[concat_ranges(begin, count)]], np.repeat(partners, count)


def ranked_groups(path: Path, window: tuple[int, int]) -> Iterator[pa.Table]:
    """The rows of a table of negatives with a rank in `window`, in order, about GROUP at a time."""
    pending: list[pa.RecordBatch] = []
    for batch in read_batches(path, RANKED):
        pending.append(batch.filter(pc.and_(pc.greater_equal(batch["rank"], window[0]), pc.less_equal(batch["rank"], window[1]))))
        if sum(part.num_rows for part in pending) >= GROUP:
            yield pa.Table.from_batches(pending, RANKED)
            pending = []
    if any(part.num_rows for part in pending):
        yield pa.Table.from_batches(pending, RANKED)


def ranked_lists(
    path: Path, queries: Path, documents: Path, window: tuple[int, int], folder: Path, among: npt.NDArray[np.bool_] | None = None
) -> DocumentLists:
    """The negatives of every query with a rank in `window`, best first; UserError if the table is out of order.

    `among` [O] says which documents are taken (None: all). Lists are mapped from two unnamed files in `folder`, so nothing is left
    behind however this process ends.
    """
    counts, last = np.zeros(count_rows(queries), dtype=np.int64), 0
    with TemporaryFile(dir=folder) as values, TemporaryFile(dir=folder) as scores:
        for table in ranked_groups(path, window):
            q, d, known = known_pairs(table, queries, documents)
            if (np.diff(q, prepend=last) < 0).any():
                raise UserError(f"{path}: its queries are not in the order of the training queries; re-run the stage that makes it")
            last = int(q[-1]) if len(q) else last
            s = table["score"].to_numpy()[known]
            selected = slice(None) if among is None else _taken(among[d], q, s)
            counts += np.bincount(q[selected], minlength=len(counts))
            values.write(d[selected].astype(np.int32).tobytes())
            scores.write(s[selected].tobytes())
        return DocumentLists(_offsets(counts), _mapped(values, np.int32), _mapped(scores, np.float32))


def _taken(allowed: npt.NDArray[np.bool_], queries: Ints, scores: Floats) -> npt.NDArray[np.bool_]:
    """Which rows are taken: those `allowed`, but of a mix's random slots (score NaN) as many, in proportion, as of its listed documents.

    A slot stands for any document, so its own does not count. It is taken if the listed row before it is, or else the one after it, of the
    same query: every range of ranks keeps the mix's ratio.
    """
    rows = np.arange(len(scores))
    listed = rows[~np.isnan(scores)]
    if not len(listed):
        return allowed
    place = np.searchsorted(listed, rows, side="right")
    before, after = listed[(place - 1).clip(min=0)], listed[place.clip(max=len(listed) - 1)]
    taken: npt.NDArray[np.bool_] = allowed[np.where(queries[before] == queries, before, after)]
    return taken


def _mapped(file: IO[bytes], dtype: type[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.memmap(file, dtype=dtype, mode="r")) if file.tell() else np.empty(0, dtype=dtype)
