"""BM25 search of a saved inverted index: every document that shares a term with the query, best first.

Lists are ordered by score, ties by descending document id: trec_eval's order, so our ranks and figures agree with its.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.lexical.params import ANALYSIS
from tasks.core.tables.ids import StoredIds
from tasks.core.tables.schemas import RANKED
from tasks.core.text.without_jax import bm25s

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Query = tuple[str, list[int]]  # id; numbers of its terms in order, without those in no document
HELD = 2**19  # results buffered before they are written: 4 MB
SPARSE = 20  # a query with postings for less than 1/20 of the documents looks only at these; at 1/20, both ways are equally fast
LEAST = np.float32(np.nextafter(np.float32(0), np.float32(1)))  # minimum score of a result: above 0


def load(folder: Path, vocabulary: bool = True) -> tuple[bm25s.BM25, StoredIds, dict[str, str]]:
    """Memory-map a saved index: the index, document ids [N], and the arguments of `analyzer`.

    Callers that have term numbers do not need the `vocabulary`, the only part held in memory.
    """
    analysis = read_json(folder / "analysis.json")
    try:
        index = bm25s.BM25.load(folder, mmap=True, load_vocab=vocabulary)
    except (FileNotFoundError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: no BM25 index ({error}); run bm25 again") from None
    if not isinstance(analysis, dict) or analysis.keys() not in ({*ANALYSIS}, {*ANALYSIS} - {"cjk"}):
        raise UserError(f"{folder / 'analysis.json'}: found no stemmer and stopwords; run bm25 again")
    analysis = {"cjk": "words", **analysis}  # an export from before there were bigrams has none
    if analysis["cjk"] not in ("bigrams", "words"):
        raise UserError(f"{folder / 'analysis.json'}: cjk: found {analysis['cjk']!r}, expected bigrams or words; run bm25 again")
    return index, StoredIds(folder / "ids.parquet"), analysis


def id_order(ids: pa.Array) -> pa.Array:
    """The position of every document in the order of ids, int64 [N], which breaks ties."""
    return pc.rank(ids, sort_keys="ascending", tiebreaker="first").cast(pa.int64())


def term_ids(terms: Iterable[str], vocabulary: Mapping[str, int]) -> list[int]:
    """The numbers of a query's terms in their order, without those that the index lacks."""
    return [vocabulary[term] for term in terms if term in vocabulary]


class Searcher:
    """Search over one buffer with a number per document [N]. A query of rare terms touches only their documents."""

    def __init__(self, index: bm25s.BM25) -> None:
        self.weights, self.documents, self.starts = (np.asarray(index.scores[name]) for name in ("data", "indices", "indptr"))
        self.count: int = index.scores["num_docs"]
        self.scores: Floats = np.zeros(_room(self.count), dtype=np.float32)  # all 0 between two queries

    def best(self, terms: Sequence[int], depth: int) -> tuple[Ints, Floats]:
        """Rows, ascending, and scores of the `depth` best documents, and of all that tie at the last rank, which ids decide.

        A term that occurs twice in the query counts twice, as in Lucene. Weights are added in the order of the query, so that scores have
        the same bits as those of bm25s.
        """
        columns = [slice(int(self.starts[term]), int(self.starts[term + 1])) for term in terms]
        total = sum(column.stop - column.start for column in columns)
        if total * SPARSE < self.count:
            return self._best_of_few(columns, total, depth)
        for column in columns:
            np.add.at(self.scores, self.documents[column].astype(np.int64), self.weights[column])
        result = _best(self.scores, self.count, depth)
        self.scores.fill(0)
        return result

    def _best_of_few(self, columns: list[slice], total: int, depth: int) -> tuple[Ints, Floats]:
        """`best`, from the `total` postings of the terms' `columns`, without a pass over all documents."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(self.documents[column] for column in columns)])
        ends = np.cumsum([0, *(column.stop - column.start for column in columns)]).tolist()
        parts = [slice(*part) for part in pairwise(ends)]
        for part, column in zip(parts, columns, strict=True):
            np.add.at(self.scores, rows[part], self.weights[column])
        sums: Floats = np.zeros(_room(total), dtype=np.float32)
        for part in parts:  # a document's score is taken once, at the first of its terms
            sums[part] = self.scores[rows[part]]
            self.scores[rows[part]] = 0
        places, scores = _best(sums, total, depth)
        order = rows[places].argsort()
        return rows[places][order], scores[order]


def _room(count: int) -> int:
    """The length of a buffer of `count` scores that `_best` can search."""
    return count + math.isqrt(count)


def _best(scores: Floats, count: int, depth: int) -> tuple[Ints, Floats]:
    """Places, ascending, and values of the `depth` largest above 0 of the first `count` scores, with all ties of the last.

    Scores after `count` must be 0. The `depth`-th largest maximum of groups of scores is a lower bound, so only few groups are looked at.
    """
    size = max(1, math.isqrt(count // depth))
    groups = -(-count // size)  # group g has the scores g, g + groups, g + 2 groups, ...
    maxima = scores[: size * groups].reshape(size, groups).max(axis=0)
    last = _last(maxima, depth)
    places = np.add.outer(np.arange(size) * groups, (maxima >= last).nonzero()[0]).ravel()
    values = scores[places]
    is_kept = values >= last
    places, values = places[is_kept], values[is_kept]
    is_kept = values >= _last(values, depth)
    return places[is_kept], values[is_kept]


def _last(scores: Floats, depth: int) -> np.float32:
    """The `depth`-th largest of `scores`, LEAST if fewer are above 0."""
    if len(scores) < depth:
        return LEAST
    partitioned = scores.copy()
    partitioned.partition(len(scores) - depth)
    return max(LEAST, np.float32(partitioned[len(scores) - depth]))


def ranked(queries: Iterable[Query], index: bm25s.BM25, ids: pa.Array | StoredIds, depth: int) -> Iterator[pa.Table]:
    """Ranked documents (schema RANKED) of `queries`, in their order, about HELD results per table. All ids are scanned once per table."""
    searcher = Searcher(index)
    names: list[str] = []
    results: list[tuple[Ints, Floats]] = []
    buffered = 0
    for name, terms in queries:
        names.append(name)
        results.append(searcher.best(terms, depth))
        buffered += len(results[-1][0])
        if buffered >= HELD:
            yield _table(names, results, ids, depth)
            names, results, buffered = [], [], 0
    if results:
        yield _table(names, results, ids, depth)


def _table(names: list[str], results: list[tuple[Ints, Floats]], ids: pa.Array | StoredIds, depth: int) -> pa.Table:
    """The rows of some queries in their order: by score, ties by descending id."""
    query = np.repeat(np.arange(len(names)), [len(rows) for rows, _ in results])
    scores = np.concatenate([scores for _, scores in results])
    unique, places = np.unique(np.concatenate([rows for rows, _ in results]), return_inverse=True)
    found_ids = ids.take(pa.array(unique))
    order = _order((query << 32) - scores.view(np.int32), places, found_ids)  # the bits of positive numbers have their order
    query, scores, places = query[order], scores[order], places[order]
    rank = np.arange(1, len(query) + 1) - np.searchsorted(query, query)
    is_kept = rank <= depth
    columns = [
        pa.array(names, pa.string()).take(pa.array(query[is_kept])),
        found_ids.take(pa.array(places[is_kept])),
        pa.array(rank[is_kept], pa.int32()),
        pa.array(scores[is_kept], pa.float32()),
    ]
    return pa.table(columns, schema=RANKED)


def _order(keys: Ints, id_places: Ints, ids: pa.Array) -> Ints:
    """The order of ascending `keys`, equal ones by descending `ids[which]`; ids are compared only where keys are equal."""
    order = np.argsort(keys)
    equal = np.diff(keys[order]) == 0
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    rows = order[tied]
    unique, places = np.unique(id_places[rows], return_inverse=True)
    order[tied] = rows[np.lexsort((-id_order(ids.take(pa.array(unique))).to_numpy()[places], keys[rows]))]
    return order
