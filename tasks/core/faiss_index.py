"""faiss indexes: opened, set up and searched. Inner product throughout; ties as in tasks.core.search."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from tasks.core.encoding import Vectors
from tasks.core.errors import UserError
from tasks.core.files import new_file
from tasks.core.search import MARGIN, Floats
from tasks.core.tokens import Ints


def open_index(path: Path, rows: int | None = None, width: int | None = None) -> Any:
    """The faiss index of a file; UserError where it cannot be read, or does not hold `rows` vectors of `width`."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise UserError(f"{path}: not a readable faiss index ({str(error).splitlines()[-1].strip()}); run index again") from None
    for name, found, expected in (("vectors", index.ntotal, rows), ("width", index.d, width)):
        if expected is not None and found != expected:
            raise UserError(
                f"{path}: found {name} {found}, expected {expected}; it is of another corpus or encoder: encode and index again"
            )
    return index


def search_index(index: Any, queries_QD: Vectors, depth: int) -> tuple[Floats, Ints]:
    """Scores float32 and rows int64, [Q, depth + MARGIN] at most, -1 where the index found fewer; UserError where widths differ."""
    if index.d != queries_QD.shape[1]:
        raise UserError(f"the index holds vectors of width {index.d}, the encoder gives {queries_QD.shape[1]}; encode and index again")
    scores, rows = index.search(np.ascontiguousarray(queries_QD), min(depth + MARGIN, index.ntotal))
    return scores, rows


def index_scores(index: Any, queries_QD: Vectors, query: Ints, row: Ints) -> Floats:
    """Score of each pair (query, row), float32 [P], by the vector that the index itself keeps (its codes, decoded)."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        inverted.make_direct_map()
    vectors = (index.reconstruct(int(r)) for r in row)
    return np.array([np.dot(queries_QD[q], vector) for q, vector in zip(query, vectors, strict=True)], dtype=np.float32)


def save_index(index: Any, path: Path) -> None:
    """Write a faiss index, whole or not at all."""
    with new_file(path) as temporary:
        faiss.write_index(index, str(temporary))
