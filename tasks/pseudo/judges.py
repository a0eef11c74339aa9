"""The round-trip filter: search the whole corpus for each query, with BM25 and with the start encoder.

A query is consistent if a ranking has its own document near the top: Promptagator (arXiv:2209.11755), section 3.2. Here there are two
rankings. Memory holds a vector and a few results per query, a block of document vectors, BM25's vocabulary, and the document ids.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tasks.core.encoding.encode import encode
from tasks.core.files import folder_digest, new_file
from tasks.core.lexical.build import build, save
from tasks.core.lexical.params import BM25
from tasks.core.lexical.search import load, ranked, term_ids
from tasks.core.machine.devices import Precision, best_batch_tokens, compute_dtype, move_module
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.exact import Reread, exact_search
from tasks.core.retrieval.passages import best_passages
from tasks.core.retrieval.queries import encode_queries
from tasks.core.retrieval.ranked import ranked_tables
from tasks.core.stage.progress import Progress, track
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.ids import StoredIds
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.analysis import analyzer
from tasks.core.text.document import Text
from tasks.core.text.mapped import document_parts, document_texts
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Tokenize
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pseudo.making import Candidate

ROWS = 2**14  # in a block of document vectors; a kill loses one block


@dataclass(frozen=True)
class Encoder:
    """The dense judge: the folders of encoder and tokenizer, how texts are tokenized, and how it computes."""

    folder: Path
    tokenizer: Path
    tokenize: Tokenize
    precision: Precision
    device: torch.device


def consistent_ids(queries: Sequence[Candidate], lists: Iterable[pa.Table]) -> set[str]:
    """The ids of the queries whose own document is in their list. `lists` has schema RANKED."""
    source = {candidate.id: candidate.doc for candidate in queries}
    consistent: set[str] = set()
    for table in lists:
        rows = zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True)
        consistent.update(query for query, doc in rows if source[query] == doc)
    return consistent


def search_bm25(queries: Sequence[Candidate], documents: Path, bm25: BM25, text: Text, *, depth: int, scratch: Path) -> Iterator[pa.Table]:
    """The `depth` best documents of every query, ties by id, from an index of the corpus as stage bm25 builds it."""
    terms = analyzer(bm25.stemmer, bm25.stopwords, bm25.cjk)
    with TemporaryDirectory(dir=scratch, prefix=".bm25") as folder:
        index_folder, postings = Path(folder, "index"), Path(folder, "postings")
        for path in (index_folder, postings):
            path.mkdir()
        tracked_texts = track(document_texts(documents, text), "pseudo: documents analyzed", count_rows(documents))
        ids = (batch["id"] for batch in read_batches(documents, DOCUMENTS, ["id"]))
        save(index_folder, build(tracked_texts, terms, bm25, postings), ids, bm25)
        index, indexed_ids, _ = load(index_folder)
        query_terms = (
            (query.id, term_ids(terms(query.text), index.vocab_dict))
            for query in track(queries, "pseudo: queries searched by BM25", len(queries))
        )
        yield from ranked(query_terms, index, indexed_ids, depth)


def search_dense(
    candidates: Sequence[Candidate], documents: Path, encoder: Encoder, text: Text, *, depth: int, scratch: Path
) -> Iterator[pa.Table]:
    """The `depth` best documents of every query, by exact search with `encoder`, ties by id. `scratch` keeps finished blocks of vectors."""
    device, tokenize = encoder.device, encoder.tokenize
    tokenizer, digest = load_tokenizer(encoder.tokenizer), folder_digest(encoder.tokenizer)
    with TemporaryDirectory(dir=scratch, prefix=".tokens") as folder:
        token_folder = Path(folder)
        texts = [([candidate.id for candidate in candidates], [candidate.text for candidate in candidates])]
        write_tokens(token_folder / "queries", texts, tokenizer, tokenize.query, digest=digest, total=len(candidates))
        parts = document_parts(documents, text)
        write_tokens(token_folder / "documents", parts, tokenizer, tokenize.document, digest=digest, total=count_rows(documents))
        queries, passages = open_tokens(token_folder / "queries"), open_tokens(token_folder / "documents")
        vectors = encode_queries(encoder.folder, queries, encoder.precision, device)
        tower = move_module(load_towers(encoder.folder).document, device, compute_dtype(device, encoder.precision))
        progress = Progress("pseudo: documents encoded", len(passages), "passages")

        def blocks() -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
            for first in range(0, len(passages), ROWS):
                rows, path = np.arange(first, min(first + ROWS, len(passages))), scratch / f"{first:010}.npy"
                if is_sealed(path):
                    progress.skip(len(rows))
                else:
                    block = encode(tower, passages, rows, best_batch_tokens(device, tower.transformer.dtype), device, progress.advance)
                    with new_file(path) as temporary, temporary.open("wb") as handle:
                        np.save(handle, block)
                    seal(path)
                yield first, np.load(path, mmap_mode="r", allow_pickle=False)

        scores, rows_QK = best_passages(
            lambda block, rows: exact_search(block, Reread(blocks), rows, device), vectors, passages.owners, depth
        )
        progress.close()
        ids = StoredIds(token_folder / "documents" / "ids.parquet")
        yield from ranked_tables(scores, rows_QK, queries.ids(), ids, passages.owners, depth)
