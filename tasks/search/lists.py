"""The ranked list of a system for one query: from a model's index, from BM25, or from a fusion of such lists."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.retrieval.faiss_search import open_index, search_index
from tasks.core.retrieval.fusion import NAMES, Ranked, fuse, pair
from tasks.core.retrieval.lexical import known, load, ranked
from tasks.core.retrieval.ranked import ranked_tables, rows_needed
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import read_json
from tasks.core.tables.ids import StoredIds
from tasks.core.text.analysis import analyzer
from tasks.core.text.tokens import open_tokens
from tasks.search.bert import Floats, query_vector


class DenseSystem:
    """A model and its index. With `resident` the query tower stays in memory; else each query reads it, without torch if possible."""

    def __init__(self, tokens: Path, *, encoder: Path, index: Path, resident: bool = False) -> None:
        self.encoder = encoder
        self._documents = open_tokens(tokens / "documents")
        queries = open_tokens(tokens / "queries" / "train")
        self._prefix, self._length = queries.prefix, queries.max_length
        self._ids = StoredIds(tokens / "documents" / "ids.parquet")
        self._vector = resident_tower(encoder, self._length) if resident else self._read_vector
        self._index: Any = None
        self._path = index / "index.faiss"

    def search(self, query: str, depth: int) -> Ranked:
        """The `depth` best documents for a query."""
        vector = self._vector(self._prefix + query)
        if self._index is None:
            self._index = open_index(self._path, len(self._documents), vector.shape[1])
        owners = self._documents.owners
        scores, rows = search_index(self._index, vector, rows_needed(depth, owners))
        return _ranked(next(ranked_tables(scores, rows, pa.array(["query"]), self._ids, owners, depth)))

    def _read_vector(self, text: str) -> Floats:
        vector = query_vector(self.encoder, text, self._length)
        return resident_tower(self.encoder, self._length)(text) if vector is None else vector


def resident_tower(encoder: Path, max_length: int) -> Callable[[str], Floats]:
    """The function from a text (prefix included) to its vector [1, D], by any encoder that the pipeline trains.

    UserError for one that cannot be loaded.
    """
    from tasks.core.retrieval.encode import encode_texts
    from tasks.core.retrieval.queries import query_tower
    from tasks.core.stage.devices import choose_device, read_runtime
    from tasks.core.text.tokenizer import load_tokenizer

    device = choose_device(read_runtime())
    tower, tokenizer = query_tower(encoder, "fp32", device), load_tokenizer(encoder)
    return lambda text: encode_texts(tower, tokenizer, [text], max_length, device)


class LexicalSystem:
    """BM25's index, with the word analysis it was built with."""

    def __init__(self, index: Path) -> None:
        self._index, self._ids, analysis = load(index)
        self.terms = analyzer(**analysis)

    def search(self, query: str, depth: int) -> Ranked:
        """The `depth` best documents for a query."""
        terms = known(self.terms(query), self._index.vocab_dict)
        return _ranked(next(iter(ranked([("query", terms)], self._index, self._ids, depth))))


class Systems:
    """Everything that can be searched, by name: models, BM25, and fusions of them."""

    def __init__(
        self,
        searched: Mapping[str, DenseSystem | LexicalSystem],
        fusions: Mapping[str, Path],
        *,
        depth: int,
        lexical_depth: int,
    ) -> None:
        """`fusions` are files fusion.json; `depth` and `lexical_depth` are the ranks of a model's and of BM25's list that are fused."""
        self._searched, self._fusions = searched, fusions
        self._depth, self._lexical_depth = depth, lexical_depth

    @property
    def names(self) -> list[str]:
        """The systems, fusions last."""
        return [*self._searched, *self._fusions]

    def search(self, query: str, name: str, k: int) -> Ranked:
        """The `k` best documents of a system for a query. UserError for a fusion of systems that are not here."""
        if name in self._searched:
            return self._searched[name].search(query, k)
        record = read_json(self._fusions[name])
        parts = {part: record[part] for part in ("first", "second")}
        for part, other in parts.items():
            if other == name or other not in self.names:
                known = ", ".join(one for one in self.names if one != name)
                raise UserError(f"{self._fusions[name]}: found {part} {other}, expected one of {known}; run retemper run")
        lists = [self.search(query, other, self._lexical_depth if other == "bm25" else self._depth) for other in parts.values()]
        two = pair(lists[0], lists[1], record["method"])
        found = fuse(two, record[NAMES[two.method]], k)
        return Ranked([doc for doc, _ in found], [score for _, score in found])


def _ranked(table: pa.Table) -> Ranked:
    return Ranked(table["doc"].to_pylist(), table["score"].to_numpy().astype(np.float64))
