"""The fixed documents of a query-side training: searched in full, and scored so that a gradient reaches the query.

B queries, L positions of a list, R rows, D width, M sub-vectors of a product quantizer, S = D' / M their width after the rotation.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.encode import Vectors
from tasks.core.retrieval.exact import Reread, exact_search, finite_block
from tasks.core.retrieval.faiss_search import refuse_other_scores, search_index
from tasks.core.retrieval.gpu.exact import Halved, rows_at_once, search
from tasks.core.retrieval.gpu.indexes import on_device
from tasks.core.retrieval.ranked import MARGIN, Floats
from tasks.core.stage.errors import UserError
from tasks.core.tables.ids import Ints

RESIDENT = 2 << 30  # bytes of vectors kept in memory on a CPU; a GPU keeps as many as fill half of its free memory
GPU_SHARDS = 128  # of 4,096 rows at a time: what a GPU searches at once
NOT_PQ = "centroids: true trains those of PQ{M}, OPQ{M},PQ{M} or OPQ{M},IVF1,PQ{M}x8"


class Documents(Protocol):
    """What a step needs of the document side."""

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        """Scores and rows of at least the best `depth` rows, [B, K]; -1 where fewer were found."""

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        """Inner products [B, L] of queries and rows, with a graph; a row of -1 scores as row 0."""


class Exact:
    """The vectors themselves: on the device if they fit, otherwise mapped from disk and moved a block at a time.

    A CPU holds them in float32, a GPU in the type that they are stored in: from float16 every score is exact, too.
    """

    def __init__(self, embeddings: Embeddings, device: torch.device) -> None:
        self.device = device
        self.embeddings = embeddings
        self.resident: torch.Tensor | None = None  # [R, D]
        self.halved: dict[int, Halved] = {}  # a GPU's, of the resident vectors
        gpu, width = device.type == "cuda", embeddings.manifest.width
        dtype = torch.float16 if gpu and embeddings.manifest.dtype == "float16" else torch.float32
        each = (2 if dtype == torch.float16 else 6 if gpu else 4) * width  # a GPU searches with a copy in float16
        room = torch.cuda.mem_get_info(device)[0] // 2 if gpu else RESIDENT
        if len(embeddings) * each <= room:
            self.resident = torch.empty(len(embeddings), width, device=device, dtype=dtype)
            for first, block in embeddings.blocks():
                here = torch.from_numpy(np.array(block)).to(device) if gpu else finite_block(first, block, device)
                self.resident[first : first + len(block)] = here  # what is not finite is refused by a GPU's search
        elif gpu:
            found = f"vectors of {len(embeddings) * each / 2**30:,.1f} GiB, half of the GPU's free memory is {room / 2**30:,.1f} GiB"
            remedy = "" if dtype == torch.float16 else "; encode.dtype: float16 takes a third"
            print(f"{embeddings.folder}: {found}: every step reads them from disk, which takes seconds{remedy}")

    def blocks(self) -> Iterator[tuple[int, Any]]:
        """(first row, vectors) of a shard, of many where they are on a GPU."""
        if self.resident is None:
            yield from self.embeddings.blocks()
            return
        sizes, at_once = self.embeddings.manifest.shards, GPU_SHARDS if self.device.type == "cuda" else 1
        first = 0
        for shard in range(0, len(sizes), at_once):
            rows = sum(sizes[shard : shard + at_once])
            yield first, self.resident[first : first + rows]
            first += rows

    def search(self, queries_BD: Vectors | torch.Tensor, depth: int) -> tuple[Floats, Ints]:
        depth = min(depth, len(self.embeddings))
        if self.device.type == "cuda":
            held = self.resident is not None
            rows = 1 if held else rows_at_once(self.embeddings.manifest.width, self.device)  # 1: as `blocks` gives them
            known = self.halved if held else None
            return search(queries_BD, Reread(self.blocks), depth + MARGIN, self.device, rows=rows, known=known)
        return exact_search(np.asarray(queries_BD), self.blocks(), depth, self.device)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        rows = np.maximum(rows_BL, 0).ravel()
        if self.resident is not None:
            vectors = self.resident[torch.from_numpy(rows).to(self.device)]
        else:
            gathered = np.empty((len(rows), self.embeddings.manifest.width), dtype=np.float32)
            for first, block in self.embeddings.blocks():
                here = np.flatnonzero((rows >= first) & (rows < first + len(block)))
                if len(here):
                    gathered[here] = block[rows[here] - first]
            vectors = torch.from_numpy(gathered).to(self.device)
        return torch.einsum("bd,bld->bl", queries_BD, vectors.float().view(*rows_BL.shape, -1))


class Compressed:
    """A faiss index that is searched as it will be served, and scored by the vectors that its codes decode to."""

    def __init__(self, index: Any, device: torch.device, key: str) -> None:
        self.index, self.device = index, device
        refuse_other_scores(index, f"params.yaml: {key}")
        self.searched = on_device(index, device)

    def _decoded(self, rows: Ints) -> Vectors:
        decoded: Vectors = self.index.reconstruct_batch(rows)
        return decoded

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        return search_index(self.searched, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        vectors = torch.from_numpy(self._decoded(np.maximum(rows_BL, 0).ravel())).to(self.device)
        return torch.einsum("bd,bld->bl", queries_BD, vectors.view(*rows_BL.shape, -1))


class Rescored:
    """A faiss index that is searched as it will be served, and scored by the uncompressed vectors.

    Source: LTRe, Algorithm 1, steps 5 and 6 (arXiv:2010.10469); DRhard looks vectors up by the retrieved ids in the same way.
    """

    def __init__(self, index: Any, vectors: Exact) -> None:
        self.searched, self.vectors = on_device(index, vectors.device), vectors

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        return search_index(self.searched, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        return self.vectors.scores(queries_BD, rows_BL)


class Centroids(nn.Module):
    """A PQ index whose centroids are trained: s = q R^T . concat(centroid[m, code_m]) (JPQ, run_train.py).

    Rotation and codes are fixed. The one coarse centroid of an IVF1 index is first added to the PQ centroids and made 0,
    which changes no score. `search` first writes the current centroids into the index, and so stays on the CPU.
    """

    def __init__(self, index: Any, device: torch.device, key: str) -> None:
        super().__init__()
        self.index, self.device = index, device
        self.rotation, inner = _rotation(index, key)
        self.rotation = self.rotation.to(device) if self.rotation is not None else None
        self.quantizer, self.codes = _quantizer(inner, key)
        M, S = int(self.quantizer.M), int(self.quantizer.dsub)
        centroids = faiss.vector_to_array(self.quantizer.centroids).reshape(M, 256, S)
        if isinstance(inner, faiss.IndexIVFPQ) and inner.by_residual:
            centroids = centroids + inner.quantizer.reconstruct(0).reshape(M, 1, S)
            inner.quantizer.reset()
            inner.quantizer.add(np.zeros((1, inner.d), dtype=np.float32))
        self.weight = nn.Parameter(torch.from_numpy(np.ascontiguousarray(centroids)).to(device))  # [M, 256, S]
        self.write_back()

    def write_back(self) -> None:
        """Write the current centroids into the index."""
        faiss.copy_array_to_vector(self.weight.detach().cpu().numpy().ravel(), self.quantizer.centroids)

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        self.write_back()
        return search_index(self.index, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        M, _, S = self.weight.shape
        codes = torch.from_numpy(self.codes[np.maximum(rows_BL, 0)].astype(np.int64)).to(self.device)  # [B, L, M]
        codes += torch.arange(M, device=self.device) * 256
        decoded_BLD = F.embedding(codes, self.weight.view(M * 256, S)).flatten(2)
        rotated_BD = queries_BD if self.rotation is None else queries_BD @ self.rotation.T
        return torch.einsum("bd,bld->bl", rotated_BD, decoded_BLD)


def _rotation(index: Any, key: str) -> tuple[torch.Tensor | None, Any]:
    """R [D', D] of a leading OPQ, if there is one, and the index behind it."""
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexPreTransform):
        return None, index
    chain: Any = index.chain
    steps = [faiss.downcast_VectorTransform(chain.at(n)) for n in range(chain.size())]
    if len(steps) != 1 or not isinstance(steps[0], faiss.LinearTransform) or steps[0].have_bias:
        raise UserError(f"params.yaml: {key}: {NOT_PQ}")
    matrix = faiss.vector_to_array(steps[0].A).reshape(steps[0].d_out, steps[0].d_in)
    return torch.from_numpy(matrix.copy()), faiss.downcast_index(index.index)


def _quantizer(index: Any, key: str) -> tuple[Any, npt.NDArray[np.uint8]]:
    """The product quantizer of an index without rotation, and the codes [R, M] in the order of rows."""
    quantizer: Any = getattr(index, "pq", None)
    exact = isinstance(index, faiss.IndexPQ) or (isinstance(index, faiss.IndexIVFPQ) and index.nlist == 1)
    if not exact or quantizer is None or quantizer.nbits != 8:
        raise UserError(f"params.yaml: {key}: {NOT_PQ}")
    if isinstance(index, faiss.IndexPQ):
        return quantizer, faiss.vector_to_array(index.codes).reshape(index.ntotal, quantizer.M).copy()
    lists = index.invlists
    codes = faiss.rev_swig_ptr(lists.get_codes(0), index.ntotal * quantizer.M).reshape(index.ntotal, quantizer.M)
    order = np.argsort(faiss.rev_swig_ptr(lists.get_ids(0), index.ntotal))
    return quantizer, codes[order]  # a copy


def searched(documents: Documents, queries_BD: torch.Tensor, depth: int) -> tuple[Floats, Ints]:
    """Search with detached vectors from the tower; their graph is unaffected."""
    vectors = queries_BD.detach()
    if isinstance(documents, Exact) and vectors.device.type == "cuda":
        return documents.search(vectors, depth)
    return documents.search(vectors.cpu().numpy().astype(np.float32), depth)
