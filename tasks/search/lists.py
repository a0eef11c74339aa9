"""The ranked list of a system for one query: from a model's index, from BM25, or from a fusion of such lists."""

from collections.abc import Mapping
from pathlib import Path

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


def dense_list(query: str, tokens: Path, depth: int, *, encoder: Path, index: Path) -> Ranked:
    """The `depth` best documents in a model's index; `tokens` says how texts are prepared for the model."""
    documents, queries = open_tokens(tokens / "documents"), open_tokens(tokens / "queries" / "train")
    text, length = queries.prefix + query, queries.max_length
    vector = query_vector(encoder, text, length)
    if vector is None:
        vector = vector_by_torch(encoder, text, length)
    opened = open_index(index / "index.faiss", len(documents), vector.shape[1])
    scores, rows = search_index(opened, vector, rows_needed(depth, documents.owners))
    ids = StoredIds(tokens / "documents" / "ids.parquet")
    return _ranked(next(ranked_tables(scores, rows, pa.array(["query"]), ids, documents.owners, depth)))


def vector_by_torch(encoder: Path, text: str, max_length: int) -> Floats:
    """`query_vector` for any encoder that the pipeline trains; UserError for one that cannot be loaded."""
    from tasks.core.retrieval.encode import encode_texts
    from tasks.core.retrieval.queries import query_tower
    from tasks.core.stage.devices import choose_device, read_runtime
    from tasks.core.text.tokenizer import load_tokenizer

    device = choose_device(read_runtime())
    return encode_texts(query_tower(encoder, "fp32", device), load_tokenizer(encoder), [text], max_length, device)


def lexical_list(query: str, index: Path, depth: int) -> Ranked:
    """The `depth` best documents in BM25's index, with the word analysis it was built with."""
    opened, ids, analysis = load(index)
    terms = known(analyzer(**analysis)(query), opened.vocab_dict)
    return _ranked(next(iter(ranked([("query", terms)], opened, ids, depth))))


def fused_list(lists: Mapping[str, Ranked], record: Path, depth: int) -> Ranked:
    """The `depth` best documents of the two `lists` that `record` (fusion.json) names, fused as it says."""
    told = read_json(record)
    for part in ("first", "second"):
        if told[part] not in lists:
            raise UserError(f"{record}: found {part} {told[part]}, expected one of {', '.join(lists)}; run retemper run")
    two = pair(lists[told["first"]], lists[told["second"]], told["method"])
    found = fuse(two, told[NAMES[two.method]], depth)
    return Ranked([doc for doc, _ in found], [score for _, score in found])


def _ranked(table: pa.Table) -> Ranked:
    return Ranked(table["doc"].to_pylist(), table["score"].to_numpy().astype(np.float64))
