"""faiss indexes on a GPU: filled and searched there, kept as ordinary files of a CPU's index. Needs the extra `gpu` (faiss-gpu)."""

from dataclasses import dataclass
from typing import Any

import faiss
import torch

from tasks.core.errors import UserError
from tasks.core.retrieval.ann.factories import layers, reason
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints

TEMPORARY = 1 << 30  # bytes that faiss may hold besides its indexes
MOST = 2048  # results and inverted lists of a query on a GPU
WIDE = 56  # from so many sub-vectors of a code on, lookup tables of float32 do not fit together


@dataclass(frozen=True)
class FaissGpu:
    """A GPU as faiss uses it."""

    number: int
    resources: Any

    @classmethod
    def of(cls, device: torch.device) -> "FaissGpu | None":
        """`device` as faiss uses it; None on a CPU, or if the installed faiss does not support GPUs."""
        if device.type != "cuda" or not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
            return None
        resources = faiss.StandardGpuResources()
        resources.setTempMemory(TEMPORARY)
        return cls(device.index or 0, resources)

    def copy(self, index: Any, rows: int = 0) -> Any:
        """`index` on the GPU, with room for `rows` vectors; RuntimeError if faiss cannot."""
        options = faiss.GpuClonerOptions()
        options.reserveVecs = rows
        if (ivf := faiss.try_extract_index_ivf(index)) is not None:
            inverted: Any = faiss.downcast_index(ivf)
            options.allowCpuCoarseQuantizer = not isinstance(faiss.downcast_index(inverted.quantizer), faiss.IndexFlat)
            options.useFloat16 = isinstance(inverted, faiss.IndexIVFPQ) and inverted.pq.M >= WIDE  # of an IVFPQ: its lookup tables
        return faiss.index_cpu_to_gpu(self.resources, self.number, index, options)

    def flat(self, width: int, metric: int) -> Any:
        """An empty exact index on the GPU, with which k-means assigns vectors."""
        return self.copy(faiss.IndexFlat(width, metric))


def required_gpu(device: torch.device) -> FaissGpu:
    """The GPU that `index.build: gpu` needs; UserError if there is none."""
    gpu = FaissGpu.of(device)
    if gpu is None:
        has_support = hasattr(faiss, "StandardGpuResources")
        problem = f"faiss finds no GPU (device {device})" if has_support else "the installed faiss has no GPU support"
        raise UserError(
            f"params.yaml: index.build: found gpu, but {problem}; expected the extra gpu (make run EXTRA=gpu) and a GPU; "
            "or set index.build: cpu"
        )
    return gpu


def cpu_only_reason(index: Any) -> str:
    """Why faiss keeps `index` on the CPU; empty if it does not."""
    inner = next(layer for layer in layers(index) if not isinstance(layer, faiss.IndexPreTransform))
    if not isinstance(inner, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexIVFPQ | faiss.IndexIVFScalarQuantizer):
        return f"faiss has no {type(inner).__name__} for GPUs"
    if isinstance(inner, faiss.IndexIVFPQ) and inner.pq.nbits != 8:
        return f"its codes have {inner.pq.nbits} bits, and a GPU takes only 8"
    if isinstance(inner, faiss.IndexIVF) and inner.nprobe > MOST:
        return f"nprobe is {inner.nprobe}, and a GPU takes at most {MOST}"
    return ""


def gpu_copy(index: Any, gpu: FaissGpu, rows: int = 0) -> tuple[Any, str]:
    """`index` on the GPU with room for `rows` vectors, and an empty text; or None, and why it stays on the CPU.

    Which lengths of codes and types of numbers a GPU takes depends on the version of faiss, so faiss is asked.
    """
    if why := cpu_only_reason(index):
        return None, why
    try:
        return gpu.copy(index, rows), ""
    except RuntimeError as error:  # also where it does not fit
        return None, reason(error)


class Copied:
    """An index and its copy on a GPU, which is searched where `k` allows."""

    def __init__(self, index: Any, copy: Any) -> None:
        self.index, self.copy = index, copy
        self.d, self.ntotal = index.d, index.ntotal
        self.warned = False

    def search(self, queries_QD: Floats, k: int) -> tuple[Floats, Ints]:
        """Search as a faiss index does."""
        if k <= MOST:
            return self.copy.search(queries_QD, k)  # type: ignore[no-any-return]
        if not self.warned:
            print(f"search index: on the CPU: {k} results per query, and a GPU returns at most {MOST}")
            self.warned = True
        return self.index.search(queries_QD, k)  # type: ignore[no-any-return]


def on_device(index: Any, device: torch.device) -> Any:
    """The index to search: a copy of `index` on the GPU if possible, else itself, and a printed line that says why.

    The copy does not follow later changes of `index`.
    """
    gpu = FaissGpu.of(device)
    if gpu is None:
        return index
    copy, why = gpu_copy(index, gpu)
    if copy is not None:
        return Copied(index, copy)
    print(f"search index: on the CPU: {why}")
    return index
