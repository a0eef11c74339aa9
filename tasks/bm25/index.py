"""The inverted index: bm25s' precomputed term weights, one column a term, one row a document."""

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import bm25s
import pyarrow as pa
import pyarrow.compute as pc

from tasks.bm25.params import BM25
from tasks.core.errors import UserError
from tasks.core.files import read_json, write_json
from tasks.core.tables import read_table, write_table

IDS = pa.schema([("id", pa.string())])


def build(texts: Iterable[str], terms: Callable[[str], list[str]], params: BM25) -> bm25s.BM25:
    """Index `texts`, read once; terms are numbered as they come, so the same texts give the same files.

    Memory holds one int32 a word of the corpus, and the index. UserError where there is no document or no term.
    """
    vocabulary: dict[str, int] = {}
    documents = [array("i", [vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)]) for text in texts]
    if not vocabulary:
        raise UserError(f"bm25: {len(documents)} documents without a single term; expected text (see data/corpus, bm25.stopwords)")
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    index.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    return index


def save(folder: Path, index: bm25s.BM25, ids: pa.ChunkedArray, params: BM25) -> None:
    """Write the index, the document ids in row order and the analysis that queries need, into `folder` (no pickle)."""
    index.save(folder, show_progress=False)
    write_table(folder / "ids.parquet", IDS, [pa.table([ids], schema=IDS)])
    write_json(folder / "analysis.json", {"stemmer": params.stemmer, "stopwords": params.stopwords})


def load(folder: Path) -> tuple[bm25s.BM25, pa.Array, dict[str, str]]:
    """Memory-map a saved index: the index, document ids [N], and the arguments of `analyzer`."""
    analysis = read_json(folder / "analysis.json")
    return bm25s.BM25.load(folder, mmap=True), read_table(folder / "ids.parquet", IDS)["id"].combine_chunks(), analysis


def id_order(ids: pa.Array) -> pa.Array:
    """The place of every document in the order of ids, int64 [N]: what ties are broken by."""
    return pc.rank(ids, sort_keys="ascending", tiebreaker="first").cast(pa.int64())
