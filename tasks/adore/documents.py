"""The fixed documents of a query-side training: searched in full, and scored so that a gradient reaches the query.

B queries, L positions of a list, R rows, D width, M sub-vectors of a product quantizer, S = D' / M their width after the rotation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from tasks.adore.params import NOT_PQ
from tasks.core.encoding.encode import Vectors
from tasks.core.errors import UserError
from tasks.core.machine.devices import compute_dtype, free_bytes, to_tensor
from tasks.core.retrieval.ann.factories import is_plain_pq
from tasks.core.retrieval.ann.search import refuse_other_scores, search_index
from tasks.core.retrieval.ann.trained import Trained
from tasks.core.retrieval.cpu.exact import Rounded
from tasks.core.retrieval.cpu.exact import search as search_cpu
from tasks.core.retrieval.cpu.mapped import ROWS, keep
from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.exact import Reread, resize_blocks
from tasks.core.retrieval.gpu.exact import Halved, rows_at_once, search
from tasks.core.retrieval.gpu.indexes import on_device
from tasks.core.retrieval.ranked import MARGIN, Floats
from tasks.core.tables.ids import Ints

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang


class Documents(Protocol):
    """The document side, as a training step uses it."""

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        """Scores and rows of the best rows, [B, K], at least `depth` of them; row -1 where fewer were found."""

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        """Inner products [B, L] of queries and rows, with gradients. Row -1 scores as row 0."""


class Exact:
    """The uncompressed vectors. A GPU holds them if they fit, else reads them at every step; a CPU searches a mapped copy in `scratch`.

    A GPU holds them in the type that they are stored in. With float16, too, every score is exact.
    """

    def __init__(self, embeddings: Embeddings, device: torch.device, scratch: Path) -> None:
        self.device, self.embeddings = device, embeddings
        self.resident: torch.Tensor | None = None  # [R, D], on a GPU
        self.halved: dict[int, Halved] = {}  # float16 forms of the resident vectors
        self.at_once = 1  # shards that a GPU searches at a time
        self.scratch = scratch
        if device.type == "cuda":
            self._hold()

    @cached_property
    def rounded_blocks(self) -> list[tuple[int, Rounded]]:
        """The vectors as a CPU searches them."""
        return keep(
            resize_blocks(self.embeddings.blocks(), ROWS, ROWS), self.embeddings.take, compute_dtype(self.device, "bf16"), self.scratch
        )

    def _hold(self) -> None:
        """Move the vectors to the GPU, if they and (of float32 ones) their float16 copy take at most half of its free memory."""
        embeddings, width, sizes = self.embeddings, self.embeddings.manifest.width, self.embeddings.manifest.shards
        is_float16 = embeddings.manifest.dtype == "float16"
        row_bytes = (2 if is_float16 else 6) * width  # float32 vectors (4) also need a float16 copy (2), which is searched
        limit_bytes = free_bytes(self.device) // 2
        if len(embeddings) * row_bytes > limit_bytes:
            size, limit = f"{len(embeddings) * row_bytes / 2**30:,.1f} GiB", f"{limit_bytes / 2**30:,.1f} GiB"
            remedy = "" if is_float16 else "; encode.dtype: float16 takes a third"
            print(
                f"{embeddings.folder}: the vectors take {size} of GPU memory, expected at most {limit}, half of what is free; every step "
                f"reads them from disk, which takes seconds{remedy}"
            )
            return
        self.resident = torch.empty(len(embeddings), width, device=self.device, dtype=torch.float16 if is_float16 else torch.float32)
        for first, block in embeddings.blocks():  # not checked here: a search refuses values that are not finite
            self.resident[first : first + len(block)] = torch.from_numpy(np.array(block)).to(self.device)
        copied = max(1, rows_at_once(width, self.device) // max(sizes, default=1))  # each group is copied, and there is room for few
        self.at_once = max(1, len(sizes)) if is_float16 else copied

    def blocks(self) -> Iterator[tuple[int, Any]]:
        """Yield (first row, vectors) in order: one shard at a time, or several if the GPU holds them."""
        if self.resident is None:
            yield from self.embeddings.blocks()
            return
        sizes, first = self.embeddings.manifest.shards, 0
        for shard in range(0, len(sizes), self.at_once):
            rows = sum(sizes[shard : shard + self.at_once])
            yield first, self.resident[first : first + rows]
            first += rows

    def search(self, queries_BD: Vectors | torch.Tensor, depth: int) -> tuple[Floats, Ints]:
        count = min(depth, len(self.embeddings)) + MARGIN
        if self.device.type != "cuda":
            queries = torch.from_numpy(np.ascontiguousarray(queries_BD))
            return search_cpu(queries, self.rounded_blocks, count, compute_dtype(self.device, "bf16"))
        is_resident = self.resident is not None
        rows = 1 if is_resident else rows_at_once(self.embeddings.manifest.width, self.device)  # 1: the blocks as they are
        return search(queries_BD, Reread(self.blocks), count, self.device, rows=rows, known=self.halved if is_resident else None)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        return torch.einsum("bd,bld->bl", queries_BD, self.vectors(np.maximum(rows_BL, 0).ravel()).view(*rows_BL.shape, -1))

    def vectors(self, rows: Ints) -> torch.Tensor:
        """The vectors of rows [N], float32 [N, D], on the device."""
        if self.resident is not None:
            return self.resident[to_tensor(rows, self.device)].float()
        return to_tensor(self.embeddings.take(rows), self.device)


@dataclass(frozen=True)
class Part(Embeddings):
    """Consecutive shards of a folder of embeddings, from shard `first` on, as if the folder had no others."""

    source: Embeddings | None = None
    first: int = 0

    @classmethod
    def of(cls, source: Embeddings, first: int, end: int) -> "Part":
        """Shards `first` to `end` - 1 of `source`."""
        manifest = source.manifest
        sizes, others = manifest.shards[first:end], set(range(len(manifest.shards))) - set(range(first, end))
        part = replace(manifest, rows=sum(sizes), shards=sizes, digests=manifest.digests[first:end])
        return cls(source.folder, part, source=Embeddings(source.folder, manifest, others), first=first)  # not read, so not verified

    def blocks(self) -> Iterator[tuple[int, Any]]:
        assert self.source is not None
        first_row = int(self.source.starts[self.first])
        for start, block in islice(self.source.blocks(), self.first, self.first + len(self.manifest.shards)):
            yield start - first_row, block

    def take(self, rows: Ints) -> Floats:
        assert self.source is not None
        return self.source.take(rows + self.source.starts[self.first])


class Shared:
    """The uncompressed vectors, in a gang: each rank holds and searches consecutive whole shards, which divides memory and time.

    All ranks must make the same calls in the same order. Results are bit for bit those of one process: scores do not depend on which
    rows are searched together, and vectors travel in float32, which is exact.
    """

    def __init__(self, embeddings: Embeddings, device: torch.device, scratch: Path, gang: "Gang") -> None:
        self.device, self.gang, self.rows, self.width = device, gang, len(embeddings), embeddings.manifest.width
        shard_starts = embeddings.starts
        shard_ranks = shard_starts[:-1] * gang.size // max(1, self.rows)  # the rank of each shard
        first_shards = np.searchsorted(shard_ranks, np.arange(gang.size + 1))  # the first shard of each rank
        self.starts = shard_starts[first_shards]  # [R + 1]: the first row of each rank
        self.part = Exact(Part.of(embeddings, *first_shards[gang.rank : gang.rank + 2].tolist()), device, scratch)

    def search(self, queries_BD: Vectors | torch.Tensor, depth: int) -> tuple[Floats, Ints]:
        count = min(depth, self.rows) + MARGIN
        scores_BK = torch.full((len(queries_BD), count), -torch.inf)
        rows_BK = torch.full((len(queries_BD), count), -1, dtype=torch.int64)
        scores, rows = self.part.search(queries_BD, depth)
        scores_BK[:, : scores.shape[1]] = torch.from_numpy(scores)
        rows_BK[:, : rows.shape[1]] = torch.from_numpy(np.where(rows < 0, rows, rows + self.starts[self.gang.rank]))
        scores_BM, rows_BM = (torch.cat(list(self.gang.all_gather(values_BK)), dim=1).numpy() for values_BK in (scores_BK, rows_BK))
        best = np.argsort(-scores_BM, axis=1, kind="stable")[:, :count]  # ties by row: rows ascend from rank to rank, and within each
        return np.take_along_axis(scores_BM, best, axis=1), np.take_along_axis(rows_BM, best, axis=1)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        rows, places = np.unique(np.maximum(rows_BL, 0).ravel(), return_inverse=True)
        ends = np.searchsorted(rows, self.starts)
        parts = [np.arange(first, end) for first, end in pairwise(ends.tolist())]
        own_rows = rows[parts[self.gang.rank]]
        vectors_ND = self.gang.gather_vectors(self.part.vectors(own_rows - self.starts[self.gang.rank]), [[part] for part in parts])
        row_vectors = vectors_ND[to_tensor(places.ravel(), self.device)]
        return torch.einsum("bd,bld->bl", queries_BD, row_vectors.view(*rows_BL.shape, -1))


class Compressed:
    """A faiss index, searched as it will be served, and scored with the vectors that its codes decode to.

    A rank that never `searches` (`search_documents`) holds no copy of it on its GPU.
    """

    def __init__(self, index: Any, device: torch.device, key: str, *, searches: bool = True) -> None:
        self.index, self.device = index, device
        refuse_other_scores(index, f"params.yaml: {key}")
        self.searched = on_device(index, device) if searches else index

    def _decoded(self, rows: Ints) -> Vectors:
        decoded: Vectors = self.index.reconstruct_batch(rows)
        return decoded

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        return search_index(self.searched, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        vectors = to_tensor(self._decoded(np.maximum(rows_BL, 0).ravel()), self.device)
        return torch.einsum("bd,bld->bl", queries_BD, vectors.view(*rows_BL.shape, -1))


class Rescored:
    """A faiss index, searched as it will be served, and scored with the uncompressed vectors.

    Source: LTRe, Algorithm 1, steps 5 and 6 (arXiv:2010.10469); DRhard looks vectors up by the retrieved ids in the same way. `searches` as
    in `Compressed`.
    """

    def __init__(self, index: Any, vectors: Exact | Shared, *, searches: bool = True) -> None:
        self.index, self.vectors = index, vectors
        self.searched = on_device(index, vectors.device) if searches else index

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        return search_index(self.searched, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        return self.vectors.scores(queries_BD, rows_BL)


class Centroids(nn.Module):
    """A PQ index whose centroids are trained: s = q R^T . concat(centroid[m, code_m]) (JPQ, run_train.py).

    Rotation and codes are fixed. The single coarse centroid of an IVF1 index is first added to the PQ centroids, then set to 0,
    which changes no score. `search` first writes the current centroids into the index, so it stays on the CPU.
    """

    def __init__(self, index: Any, device: torch.device, key: str) -> None:
        super().__init__()
        if not is_plain_pq(index):
            raise UserError(f"params.yaml: {key}: {NOT_PQ}")
        self.index, self.device = index, device
        self.rotation, inner = _rotation(index)
        self.rotation = self.rotation.to(device) if self.rotation is not None else None
        self.quantizer, self.codes = _quantizer(inner)
        M, S = int(self.quantizer.M), int(self.quantizer.dsub)
        centroids = faiss.vector_to_array(self.quantizer.centroids).reshape(M, 256, S)
        if isinstance(inner, faiss.IndexIVFPQ) and inner.by_residual:
            centroids = centroids + inner.quantizer.reconstruct(0).reshape(M, 1, S)
            inner.quantizer.reset()
            inner.quantizer.add(np.zeros((1, inner.d), dtype=np.float32))
        self.weight = nn.Parameter(torch.from_numpy(np.ascontiguousarray(centroids)).to(device))  # [M, 256, S]
        self.write_back()

    @classmethod
    def of(cls, index: Any, trained: Trained | None, device: torch.device, key: str) -> "Centroids":
        """Start from the centroids of `trained`, an earlier training, if it has some; otherwise from the index's own."""
        centroids = cls(index, device, key)
        if trained and trained.centroids is not None:
            with torch.no_grad():
                centroids.weight.copy_(torch.from_numpy(trained.centroids))
            centroids.write_back()
        return centroids

    def write_back(self) -> None:
        """Write the current centroids into the index."""
        faiss.copy_array_to_vector(self.weight.detach().cpu().numpy().ravel(), self.quantizer.centroids)

    def search(self, queries_BD: Vectors, depth: int) -> tuple[Floats, Ints]:
        self.write_back()
        return search_index(self.index, queries_BD, depth)

    def scores(self, queries_BD: torch.Tensor, rows_BL: Ints) -> torch.Tensor:
        M, _, S = self.weight.shape
        codes = to_tensor(self.codes[np.maximum(rows_BL, 0)].astype(np.int64), self.device)  # [B, L, M]
        codes += torch.arange(M, device=self.device) * 256
        decoded_BLD = F.embedding(codes, self.weight.view(M * 256, S)).flatten(2)
        rotated_BD = queries_BD if self.rotation is None else queries_BD @ self.rotation.T
        return torch.einsum("bd,bld->bl", rotated_BD, decoded_BLD)


def _rotation(index: Any) -> tuple[torch.Tensor | None, Any]:
    """The rotation R [D', D] if the index begins with OPQ, else None; and the index behind it."""
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexPreTransform):
        return None, index
    chain: Any = index.chain
    step: Any = faiss.downcast_VectorTransform(chain.at(0))
    matrix = faiss.vector_to_array(step.A).reshape(step.d_out, step.d_in)
    return torch.from_numpy(matrix.copy()), faiss.downcast_index(index.index)


def _quantizer(index: Any) -> tuple[Any, npt.NDArray[np.uint8]]:
    """The product quantizer of an index without rotation, and its codes [R, M] in row order."""
    quantizer: Any = index.pq
    if isinstance(index, faiss.IndexPQ):
        return quantizer, faiss.vector_to_array(index.codes).reshape(index.ntotal, quantizer.M).copy()
    lists = index.invlists
    codes = faiss.rev_swig_ptr(lists.get_codes(0), index.ntotal * quantizer.M).reshape(index.ntotal, quantizer.M)
    order = np.argsort(faiss.rev_swig_ptr(lists.get_ids(0), index.ntotal))
    return quantizer, codes[order]  # a copy


def search_documents(documents: Documents, queries_BD: torch.Tensor, depth: int, gang: "Gang | None" = None) -> tuple[Floats, Ints]:
    """Search with the tower's vectors, without gradients: scores (float32) and rows (int64; -1: none), both [B, K].

    In a `gang`, documents that are not `Shared` are searched by the first rank alone, because faiss on another GPU may break ties
    differently.
    """
    if gang is not None and not isinstance(documents, Shared):
        return gang.broadcast(
            search_documents(documents, queries_BD, depth) if gang.is_first else (np.empty(0, np.float32), np.empty(0, np.int64))
        )
    vectors = queries_BD.detach()
    if isinstance(documents, Exact | Shared) and vectors.device.type == "cuda":
        return documents.search(vectors, depth)
    return documents.search(vectors.cpu().numpy().astype(np.float32), depth)
