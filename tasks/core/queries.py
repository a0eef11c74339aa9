"""Query vectors and the exact search over a corpus's embeddings, as mine, evaluate and index need them."""

from pathlib import Path

import numpy as np
import torch

from tasks.core.devices import Precision, compute_dtype
from tasks.core.embeddings import Embeddings
from tasks.core.encoder import load_towers
from tasks.core.encoding import Vectors, encode
from tasks.core.errors import UserError
from tasks.core.progress import Progress
from tasks.core.search import Floats, exact_search, rows_needed
from tasks.core.tokens import Ints, Tokens

BATCH_TOKENS = 4096


def encode_queries(encoder: Path, tokens: Tokens, precision: Precision, device: torch.device, most: int | None = None) -> Vectors:
    """Vectors [Q, D] of the queries of a token folder, the first `most`, by the query tower of an encoder folder.

    UserError for a vector that is not finite.
    """
    rows = np.arange(len(tokens))[:most]
    tower = load_towers(encoder).query.to(device, compute_dtype(device, precision))
    progress = Progress(f"encode {tokens.folder.name} queries", len(rows), "queries")
    vectors = encode(tower, tokens, rows, BATCH_TOKENS, device, progress.advance)
    progress.close()
    if not np.isfinite(vectors).all():
        row = int(np.argmin(np.isfinite(vectors).all(axis=1)))
        query = tokens.ids()[int(tokens.owners[row])]
        raise UserError(f"{encoder}: gives NaN or infinity for a query ({tokens.folder.name} {query}); train that model again")
    return vectors


def search_embeddings(queries_QD: Vectors, embeddings: Embeddings, depth: int, device: torch.device) -> tuple[Floats, Ints]:
    """Exact search with progress for the `depth` best documents, see `exact_search`. UserError where widths differ."""
    if queries_QD.shape[1] != embeddings.manifest.width:
        raise UserError(
            f"{embeddings.folder}: vectors of width {embeddings.manifest.width}, the encoder gives {queries_QD.shape[1]}; encode again"
        )
    progress = Progress("search", len(embeddings), "passages")
    found = exact_search(
        queries_QD, embeddings.blocks(), min(rows_needed(depth, embeddings.owners()), len(embeddings)), device, progress.advance
    )
    progress.close()
    return found
