"""The ranked lists of a system for queries: from a model's index, from BM25, or from a fusion of such lists.

The result of a query does not depend on other queries in the batch, to the last bit, because each is encoded and searched by itself.
(faiss adds in a different order for a batch, and so does a product of matrices.)
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.lexical.search import load, ranked, term_ids
from tasks.core.params.runtime import read_runtime
from tasks.core.retrieval.ann.search import ShortLists, open_index, search_index
from tasks.core.retrieval.fusion import DEPTH, NAMES, Ranked, fuse, pair
from tasks.core.retrieval.passages import best_passages, rows_needed
from tasks.core.retrieval.ranked import Ids, ranked_tables
from tasks.core.tables.ids import StoredIds, read_ids
from tasks.core.text.analysis import analyzer, pieces, words
from tasks.core.tokens.folder import open_tokens
from tasks.search.bert import Floats, query_vector, resident_vector

Each = Callable[[Callable[[str], Any], Iterable[str]], Iterable[Any]]  # map, or the map of a thread pool


@dataclass(frozen=True)
class Texts:
    """The encoder's settings for queries, and the documents behind an index's rows: `owners` int32 [R] are places in `ids` [O]."""

    query_prefix: str
    query_length: int
    owners: npt.NDArray[np.int32]
    ids: Ids


def texts_of_tokens(tokens: Path) -> Texts:
    """Read `Texts` from a token folder. UserError if it is incomplete."""
    documents, queries = open_tokens(tokens / "documents"), open_tokens(tokens / "queries" / "train")
    return Texts(queries.prefix, queries.max_length, documents.owners, StoredIds(tokens / "documents" / "ids.parquet"))


class DenseSystem:
    """A model and its index. With `resident` the query tower stays in memory, else each query reads it. torch is avoided if possible."""

    def __init__(self, texts: Texts, *, encoder: Path, index: Path, resident: bool = False, each: Each = map) -> None:
        self.encoder = encoder
        self._texts, self._each = texts, each
        self._passages = rows_needed(1, texts.owners)
        self._vector = self._resident() if resident else self._read_vector
        self._index: Any = None
        self._told = False  # whether the warning about short lists has been printed
        self._path = index / "index.faiss"

    def search(self, queries: Sequence[str], depth: int) -> list[Ranked]:
        """The `depth` best documents for each query."""
        if not queries:
            return []
        texts = self._texts
        parts = list(self._each(lambda query: self._rows(query, depth), queries))
        scores, rows = (np.concatenate([arrays[place] for arrays in parts]) for place in (0, 1))
        lists = _split(ranked_tables(scores, rows, _numbers(len(queries)), texts.ids, texts.owners, depth), len(queries))
        if not self._told:
            short_lists = ShortLists(min(depth, len(texts.ids))).count(np.array([len(result.documents) for result in lists]))
            short_lists.warn(str(self._path.parent), self._index, file=sys.stderr)
            self._told = short_lists.short > 0
        return lists

    def open(self, width: int) -> Any:
        """The index, opened at first use. UserError if it is unreadable, or does not fit these texts or vectors of `width`."""
        if self._index is None:
            self._index = open_index(self._path, len(self._texts.owners), width, mapped=True)
        return self._index

    def _rows(self, query: str, depth: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        vector = self._vector(query)
        search = partial(search_index, self.open(vector.shape[1]))
        return best_passages(search, vector, self._texts.owners, depth, depth * self._passages)

    def _read_vector(self, text: str) -> Floats:
        texts = self._texts
        vector = query_vector(self.encoder, texts.query_prefix + text, texts.query_length)
        return resident_tower(self.encoder, texts.query_length, texts.query_prefix)(text) if vector is None else vector

    def _resident(self) -> Callable[[str], Floats]:
        length, prefix = self._texts.query_length, self._texts.query_prefix
        if vector := resident_vector(self.encoder, length):
            return lambda text: vector(prefix + text)
        return resident_tower(self.encoder, length, prefix)


def resident_tower(encoder: Path, max_length: int, prefix: str) -> Callable[[str], Floats]:
    """Make a function from a text to the vector [1, D] of `prefix` and text. Works for any encoder that the pipeline trains, with torch.

    UserError if the encoder cannot be loaded.
    """
    from tasks.core.encoding.encode import encode_texts
    from tasks.core.machine.devices import choose_device
    from tasks.core.retrieval.queries import query_tower
    from tasks.core.tokens.tokenizer import load_tokenizer

    device = choose_device(read_runtime())
    tower, tokenizer = query_tower(encoder, "fp32", device), load_tokenizer(encoder)
    lock = Lock()  # tokenizers of transformers are not thread-safe

    def vector(text: str) -> Floats:
        with lock:
            return encode_texts(tower, tokenizer, [text], max_length, device, prefix)

    return vector


class LexicalSystem:
    """BM25's index, with the word analysis it was built with. With `resident` all document ids are in memory."""

    def __init__(self, index: Path, *, resident: bool = False) -> None:
        self._index, stored, analysis = load(index)
        self._ids = read_ids(stored.path) if resident else stored
        self.terms = analyzer(**analysis)
        self.cut = words if analysis["cjk"] == "words" else pieces  # cuts a text into pieces, unchanged, that `terms` can analyse

    def search(self, queries: Sequence[str], depth: int) -> list[Ranked]:
        """The `depth` best documents for each query."""
        query_terms = [(str(number), term_ids(self.terms(query), self._index.vocab_dict)) for number, query in enumerate(queries)]
        return _split(ranked(query_terms, self._index, self._ids, depth), len(queries))


class Systems:
    """Everything that can be searched, by name: models, BM25, and fusions of them."""

    def __init__(
        self,
        searched: Mapping[str, DenseSystem | LexicalSystem],
        fusions: Mapping[str, Path | Mapping[str, Any]],
        *,
        depth: int,
        lexical_depth: int,
    ) -> None:
        """`fusions`: files fusion.json, or their content. `depth`, `lexical_depth`: ranks of a model's and BM25's list that are fused."""
        self._searched, self._fusions = searched, fusions
        self._depth, self._lexical_depth = depth, lexical_depth
        self._records = {name: self._record(name) for name in fusions}

    @property
    def names(self) -> list[str]:
        """The names of all systems, fusions last."""
        return [*self._searched, *self._fusions]

    def search(self, query: str, name: str, k: int) -> Ranked:
        """The `k` best documents of a system for a query."""
        return self.search_many([query], name, k)[0]

    def search_many(self, queries: Sequence[str], name: str, k: int) -> list[Ranked]:
        """The `k` best documents of a system for each query."""
        if name in self._searched:
            return self._searched[name].search(queries, k)
        record = self._records[name]
        lists = [self.search_many(queries, component, self._depth_of(component)) for component in (record["first"], record["second"])]
        return [_fused(first, second, record, k) for first, second in zip(*lists, strict=True)]

    def _depth_of(self, name: str) -> int:
        """The number of ranks of a system's list that are fused, which is the depth of its run."""
        if name in self._records:
            return int(self._records[name].get("depth", DEPTH))
        return self._lexical_depth if name == "bm25" else self._depth

    def _record(self, name: str) -> Mapping[str, Any]:
        fusion = self._fusions[name]
        record: Mapping[str, Any] = read_json(fusion) if isinstance(fusion, Path) else fusion
        source = fusion if isinstance(fusion, Path) else f"fusion {name}"
        for part in ("first", "second"):
            if (component := record[part]) == name or component not in self.names:
                known = ", ".join(system for system in self.names if system != name)
                raise UserError(f"{source}: found {part} {component}, expected one of {known}; run retemper run")
        return record


def _fused(first: Ranked, second: Ranked, record: Mapping[str, Any], k: int) -> Ranked:
    lists = pair(first, second, record["method"])
    fused = fuse(lists, record[NAMES[lists.method]], k)
    return Ranked([doc for doc, _ in fused], [score for _, score in fused])


def _numbers(count: int) -> pa.Array:
    return pa.array(map(str, range(count)), pa.string())


def _split(tables: Iterator[pa.Table], count: int) -> list[Ranked]:
    """Split tables (schema RANKED) into one list per query. Queries are named by their numbers, 0 to `count` - 1, in order."""
    table = pa.concat_tables(tables)
    ends = np.searchsorted(table["query"].to_numpy().astype(np.int64), np.arange(count + 1))
    docs, scores = table["doc"].to_pylist(), table["score"].to_numpy().astype(np.float64)
    return [Ranked(docs[start:end], scores[start:end]) for start, end in pairwise(ends.tolist())]
