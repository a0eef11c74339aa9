"""BM25 search of a saved inverted index: every document that shares a term with the query, best first.

Lists are ordered by score, ties by descending document id: trec_eval's order, so our ranks and figures agree with its.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import bm25s
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.stage.files import read_json
from tasks.core.tables.ids import StoredIds
from tasks.core.tables.schemas import RANKED

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Query = tuple[str, list[int]]  # id; numbers of its terms in order, without those in no document
HELD = 2**19  # results buffered before they are written: 4 MB
LEAST = np.nextafter(np.float32(0), np.float32(1))  # minimum score of a result: above 0


def load(folder: Path, vocabulary: bool = True) -> tuple[bm25s.BM25, StoredIds, dict[str, str]]:
    """Memory-map a saved index: the index, document ids [N], and the arguments of `analyzer`.

    Callers that have term numbers do not need the `vocabulary`, the only part held in memory.
    """
    analysis = read_json(folder / "analysis.json")
    return bm25s.BM25.load(folder, mmap=True, load_vocab=vocabulary), StoredIds(folder / "ids.parquet"), analysis


def id_order(ids: pa.Array) -> pa.Array:
    """The position of every document in the order of ids, int64 [N], which breaks ties."""
    return pc.rank(ids, sort_keys="ascending", tiebreaker="first").cast(pa.int64())


def known(terms: Iterable[str], vocabulary: Mapping[str, int]) -> list[int]:
    """The numbers of those of a query's terms that the index has, in their order."""
    return [vocabulary[term] for term in terms if term in vocabulary]


class Searcher:
    """Search over one buffer with a number per document [N]. A query touches only the documents of its terms."""

    def __init__(self, index: bm25s.BM25) -> None:
        self.weights, self.documents, self.starts = (np.asarray(index.scores[name]) for name in ("data", "indices", "indptr"))
        self.scores: Floats = np.zeros(index.scores["num_docs"], dtype=np.float32)  # all 0 between two queries

    def best(self, terms: Sequence[int], depth: int) -> tuple[Ints, Floats]:
        """Ascending rows and scores of the `depth` best documents, with all ties at the last rank, which ids decide.

        A term that occurs twice in the query counts twice, as in Lucene. Weights are added in the order of the query,
        so that scores have the same bits as those of bm25s.
        """
        added: list[tuple[Ints, Floats]] = []  # for every term its documents, and their sums up to it
        for term in terms:
            column = slice(self.starts[term], self.starts[term + 1])
            rows = self.documents[column].astype(np.int64)
            sums = self.scores[rows] + self.weights[column]
            self.scores[rows] = sums
            added.append((rows, sums))
        last = LEAST
        for _, sums in sorted(added, key=lambda pair: len(pair[0])):  # rare terms weigh most: few documents of the others matter
            last = max(last, _last(sums[sums >= last], depth))
        # A document's score is its sum at the last of its terms; the best have at least `last` there.
        candidates = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(rows[sums >= last] for rows, sums in added)]))
        scores = self.scores[candidates]
        kept = scores >= max(last, _last(scores, depth))
        for rows, _ in added:
            self.scores[rows] = 0
        return candidates[kept], scores[kept]


def _last(scores: Floats, depth: int) -> np.float32:
    """The `depth`-th largest of `scores`, LEAST if there are fewer."""
    return np.float32(np.partition(scores, len(scores) - depth)[len(scores) - depth]) if len(scores) >= depth else LEAST


def ranked(queries: Iterable[Query], index: bm25s.BM25, ids: pa.Array | StoredIds, depth: int) -> Iterator[pa.Table]:
    """Ranked documents (schema RANKED) of `queries`, in their order, about HELD results per table. All ids are scanned once per table."""
    searcher = Searcher(index)
    names: list[str] = []
    found: list[tuple[Ints, Floats]] = []
    held = 0
    for name, terms in queries:
        names.append(name)
        found.append(searcher.best(terms, depth))
        held += len(found[-1][0])
        if held >= HELD:
            yield _table(names, found, ids, depth)
            names, found, held = [], [], 0
    if found:
        yield _table(names, found, ids, depth)


def _table(names: list[str], found: list[tuple[Ints, Floats]], ids: pa.Array | StoredIds, depth: int) -> pa.Table:
    """The rows of some queries in their order: by score, ties by descending id."""
    query = np.repeat(np.arange(len(names)), [len(rows) for rows, _ in found])
    scores = np.concatenate([scores for _, scores in found])
    unique, which = np.unique(np.concatenate([rows for rows, _ in found]), return_inverse=True)
    found_ids = ids.take(pa.array(unique))
    order = np.lexsort((-id_order(found_ids).to_numpy()[which], -scores, query))
    query, scores, which = query[order], scores[order], which[order]
    rank = np.arange(1, len(query) + 1) - np.searchsorted(query, query)
    kept = rank <= depth
    columns = [
        pa.array(names, pa.string()).take(pa.array(query[kept])),
        found_ids.take(pa.array(which[kept])),
        pa.array(rank[kept], pa.int32()),
        pa.array(scores[kept], pa.float32()),
    ]
    return pa.table(columns, schema=RANKED)
