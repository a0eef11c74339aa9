"""faiss indexes: opened, set up and searched. Inner product throughout; ties as in tasks.core.retrieval.ranked."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import faiss
import numpy as np

from tasks.core.errors import UserError, user_error
from tasks.core.files import new_file
from tasks.core.plurals import counted
from tasks.core.retrieval.ann.factories import layers, reason
from tasks.core.retrieval.ranked import MARGIN, QUERY_BLOCK, Floats
from tasks.core.stage.progress import Progress, track
from tasks.core.tables.ids import Ints

FLAT = b"IxFI"  # how the file of an IndexFlatIP begins
CHECKED = 64  # random queries whose scores are compared with the index's own
TOLERANCE = 1e-3  # of the largest score


def open_index(path: Path, rows: int | None = None, width: int | None = None, *, threads: int | None = None, mapped: bool = False) -> Any:
    """The faiss index of a file; UserError if it cannot be read, scores by distances, or does not have `rows` vectors of `width`.

    The vectors of a Flat stay in the file, and with `mapped` those of any index: the system reads what a search needs, once for all
    processes. From here on faiss searches with `threads` threads; none: as many as it finds cores.
    """
    if threads:
        faiss.omp_set_num_threads(threads)
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped or _is_flat(path) else 0)
    except MemoryError:  # a corrupt length, or too little memory
        raise UserError(f"{path}: unreadable faiss index, corrupt or larger than the free memory; make room or run index again") from None
    except RuntimeError as error:
        raise UserError(f"{path}: unreadable faiss index ({str(error).splitlines()[-1].strip()}); run index again") from None
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise UserError(f"{path}: found an index of distances, expected one of inner products; run index again")
    for name, found, expected in (("vectors", index.ntotal, rows), ("width", index.d, width)):
        if expected is not None and found != expected:
            raise UserError(
                f"{path}: found {name} {found}, expected {expected}: it belongs to another corpus or encoder; encode and index again"
            )
    return index


def _is_flat(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(FLAT)) == FLAT
    return False


def search_index(index: Any, queries_QD: Floats, depth: int) -> tuple[Floats, Ints]:
    """Scores float32 and rows int64, at most [Q, depth + MARGIN], -1 where the index found fewer.

    UserError if widths differ, or faiss fails.
    """
    if index.d != queries_QD.shape[1]:
        raise UserError(f"the index has width {index.d}, the encoder {queries_QD.shape[1]}; encode and index again")
    try:
        scores, rows = index.search(np.ascontiguousarray(queries_QD), min(depth + MARGIN, index.ntotal))
    except RuntimeError as error:
        if user_error(error):  # a full GPU
            raise
        raise UserError(f"the index cannot be searched; faiss says: {reason(error)}; choose another factory string") from None
    return scores, rows


@dataclass
class ShortLists:
    """Counts result lists with fewer than `wanted` results, as of an IVF that probes too few of its inverted lists."""

    wanted: int
    lists: int = 0
    short: int = 0
    least: int = 0

    def count(self, lengths_Q: Ints) -> "ShortLists":
        """Count the lists of some more queries, by their numbers of results; return this object."""
        short = lengths_Q[lengths_Q < self.wanted]
        if len(short):
            self.least = min(int(short.min()), self.least if self.short else self.wanted)
        self.lists, self.short = self.lists + len(lengths_Q), self.short + len(short)
        return self

    def warn(self, search: str, index: Any, section: str = "", file: TextIO | None = None) -> None:
        """If there were short lists, print in one line how many, how short, and what to raise (in `section` of params.yaml)."""
        if self.short:
            queries = f"{self.short:,} of {counted(self.lists, 'queries')}, {self.least:,} of {self.wanted:,} at worst"
            print(f"{search}: the index found too few results for {queries}; {_remedy(index, section)}", file=file)


def _remedy(index: Any, section: str) -> str:
    for layer in layers(index):
        if isinstance(layer, faiss.IndexIVF) and layer.nprobe < layer.nlist:
            return f"raise {section}nprobe ({layer.nprobe:,} of {counted(layer.nlist, 'inverted lists')} probed)"
        if isinstance(layer, faiss.IndexHNSW):
            return f"raise {section}ef_search ({layer.hnsw.efSearch:,}), or the number after HNSW"
    return "choose another factory string"


def search_indexed(queries_QD: Floats, index: Any, depth: int) -> tuple[Floats, Ints]:
    """`search_index` with progress, QUERY_BLOCK queries at a time."""
    progress = Progress("search index", len(queries_QD), "queries")
    parts = []
    for start in range(0, max(1, len(queries_QD)), QUERY_BLOCK):
        parts.append(search_index(index, queries_QD[start : start + QUERY_BLOCK], depth))
        progress.advance(len(parts[-1][0]))
    progress.close()
    return np.concatenate([scores for scores, _ in parts]), np.concatenate([rows for _, rows in parts])


def refuse_other_scores(index: Any, where: str) -> None:
    """UserError if the index's score of a row is not the inner product with its decoded vector.

    Afterwards, inverted lists (if any) can be decoded by row.
    """
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        inverted.make_direct_map()
    if (inverted is not None and isinstance(faiss.downcast_index(inverted), faiss.IndexIVFFastScan)) or not _scores_decoded(index):
        raise UserError(
            f"{where}: this index does not score by its decoded vectors, as required here; expected Flat, IVF, PQ, OPQ, PCA, SQ or HNSW"
        )


def _scores_decoded(index: Any) -> bool:
    """Whether scores are those of decoded vectors. Not for an IVF with fast scan: faiss crashes when it decodes one."""
    try:
        queries = np.random.default_rng(0).normal(size=(CHECKED, index.d)).astype(np.float32)
        scores, rows = search_index(index, queries, 1)
        found = rows >= 0
        decoded = index.reconstruct_batch(np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
        expected = np.einsum("bd,bkd->bk", queries, decoded)[found]
        return bool(found.any() and np.abs(expected - scores[found]).max() <= TOLERANCE * np.abs(expected).max())
    except (RuntimeError, UserError):
        return False


def index_scores(index: Any, queries_QD: Floats, query: Ints, row: Ints) -> Floats:
    """Score of each pair (query, row), float32 [P], by the vector that the index stores (its decoded codes).

    Only for an index that `refuse_other_scores` accepted; otherwise scores differ from a search's.
    """
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        inverted.make_direct_map()
    scores = np.empty(len(row), dtype=np.float32)
    for pair, (q, r) in enumerate(track(zip(query.tolist(), row.tolist(), strict=True), "score known positives", len(row), "passages")):
        scores[pair] = np.dot(queries_QD[q], index.reconstruct(r))
    return scores


def save_index(index: Any, path: Path) -> None:
    """Write a faiss index atomically."""
    with new_file(path) as temporary:
        faiss.write_index(index, str(temporary))
