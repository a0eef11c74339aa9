"""Query vectors and the exact search over a corpus's embeddings, as mine, retrieve and index need them."""

from pathlib import Path

import numpy as np
import torch

from tasks.core.encoding.encode import Vectors, encode
from tasks.core.errors import UserError
from tasks.core.machine.devices import Precision, best_batch_tokens, compute_dtype, move_module
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.exact import Reread, exact_search
from tasks.core.retrieval.ranked import MARGIN, QUERY_BLOCK, Floats
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens

HELD = 2**22  # search results in memory at a time, 24 bytes each: a CPU computes for far longer than it reads the corpus
HELD_GPU = 2**25  # a GPU computes faster, so it reads less often: 0.4 GB
FEWEST = 64  # queries at a time, however many results each has


def query_tower(encoder: Path, precision: Precision, device: torch.device) -> Encoder:
    """The query tower of an encoder folder, on `device`, ready to encode."""
    return move_module(load_towers(encoder).query, device, compute_dtype(device, precision))


def encode_queries(
    encoder: Path,
    tokens: Tokens,
    precision: Precision,
    device: torch.device,
    most: int | None = None,
    tower: Encoder | None = None,
) -> Vectors:
    """Vectors [Q, D] of the queries of a token folder, the first `most`, by the query tower of an encoder folder (`tower`: loaded already).

    UserError for a vector that is not finite.
    """
    rows = np.arange(len(tokens))[:most]
    tower = tower or query_tower(encoder, precision, device)
    progress = Progress(f"encode {tokens.folder.name} queries", len(rows), "queries")
    vectors = encode(tower, tokens, rows, best_batch_tokens(device, tower.transformer.dtype), device, progress.advance)
    progress.close()
    if not np.isfinite(vectors).all():
        row = int(np.argmin(np.isfinite(vectors).all(axis=1)))
        query = tokens.ids()[int(tokens.owners[row])]
        raise UserError(f"{encoder}: returns NaN or infinity for a query ({tokens.folder.name} {query}); train that model again")
    return vectors


def search_embeddings(queries_QD: Vectors, embeddings: Embeddings, depth: int, device: torch.device) -> tuple[Floats, Ints]:
    """Exact search, with progress: scores (float32) and rows (int64), [Q, K + MARGIN] as of `exact_search`.

    K is `depth`, or the number of passages if that is less. UserError if widths differ.
    """
    embeddings.refuse_other_width(queries_QD.shape[1])
    progress = Progress("search", len(embeddings), "passages")
    result = exact_search(queries_QD, Reread(embeddings.blocks), min(depth, len(embeddings)), device, progress.advance)
    progress.close()
    return result


def part_size(rows: int, device: torch.device | None = None) -> int:
    """How many queries of `rows` results each are searched at a time on `device` (None: a CPU).

    At most HELD results (or those of FEWEST queries), in whole blocks of QUERY_BLOCK if possible. A kill loses at most a part, and each
    part reads the corpus once: 4 times for MS MARCO's 503k queries, 200 deep, on a GPU.
    """
    most = (HELD_GPU if device is not None and device.type == "cuda" else HELD) // (rows + MARGIN)
    return most // QUERY_BLOCK * QUERY_BLOCK or max(FEWEST, most)
