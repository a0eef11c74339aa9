"""The inverted index: bm25s' precomputed term weights, one column per term, one row per document."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.lexical.params import ANALYSIS, BM25
from tasks.core.lexical.postings import invert, write_pairs
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.text.without_jax import bm25s


def build(texts: Iterable[str], terms: Callable[[str], list[str]], params: BM25, scratch: Path) -> bm25s.BM25:
    """Index `texts`, read once; terms are numbered in order of appearance, so the same texts give the same files.

    The index is in memory-mapped files in `scratch`; memory holds the vocabulary and a block of documents.
    The saved index equals that of bm25s's own build, which holds the corpus in memory, byte for byte. UserError if there is
    no document or no term.
    """
    pairs = write_pairs(texts, terms, scratch)
    if not pairs.vocabulary:
        raise UserError(
            f"bm25: {pairs.documents} documents have no terms, expected text; set text.titles=true if they have only titles, else check "
            "data/corpus and bm25.stopwords"
        )
    columns = invert(pairs, params.k1, params.b)
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    index.nonoccurrence_array = None  # as its own build sets it for this variant
    index.vocab_dict = pairs.vocabulary
    index.scores = {"data": columns.data, "indices": columns.indices, "indptr": columns.indptr, "num_docs": pairs.documents}
    return index


def save(folder: Path, index: bm25s.BM25, ids: Iterable[pa.Array], params: BM25) -> None:
    """Write the index, the document ids in row order, a part at a time, and the analysis that queries need, into `folder` (no pickle)."""
    index.save(folder, show_progress=False)
    write_table(folder / "ids.parquet", IDS, (pa.table([part], schema=IDS) for part in ids))
    write_json(folder / "analysis.json", {name: getattr(params, name) for name in ANALYSIS})
