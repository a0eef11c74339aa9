"""Building a faiss index from embedding shards, and measuring its recall; for every stage that makes one."""

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import faiss
import numpy as np
import torch

from tasks.core.encoding.encode import Vectors
from tasks.core.errors import UserError, user_error
from tasks.core.files import new_file
from tasks.core.retrieval.ann.factories import layers, reason, transforms_of
from tasks.core.retrieval.ann.search import FLAT
from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.gpu.indexes import FaissGpu, gpu_copy
from tasks.core.retrieval.ranked import Floats
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import Ints

TIE = 1e-6  # relative difference of fp32 scores that count as equal


class Recipe(Protocol):
    """The fields that define an index, those of tasks.index.params.Index, described there."""

    @property
    def factory(self) -> str: ...
    @property
    def nprobe(self) -> int: ...
    @property
    def ef_search(self) -> int: ...
    @property
    def k_factor(self) -> int: ...
    @property
    def train_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


def build(
    embeddings: Embeddings, params: Recipe, key: str = "index.factory", *, gpu: FaissGpu | None = None, trained: Any | None = None
) -> Any:
    """A faiss index of all rows, in their order; UserError for a factory string (of `key`) faiss does not know or cannot train.

    An empty index that was `trained` before is filled as it is; else one is trained on a sample of the rows (see `trained_empty`).

    PCA and the graph of an HNSW are made on one thread: otherwise their bits would depend on the number of threads. OPQ's do depend on it,
    because its hundreds of clusterings would take too long on one thread, and so do RQ's and the last bits of what PCA and RR project. On a
    `gpu`, inverted lists are clustered and filled, if faiss can.
    """
    index = trained_empty(embeddings, params, key, gpu=gpu) if trained is None else trained
    threads = torch.get_num_threads()
    faiss.omp_set_num_threads(threads)  # its OpenMP may not be torch's and does not know runtime.yaml
    set_effort(index, params)
    progress = Progress(f"index {params.factory}", len(embeddings), "vectors")
    target = index
    if gpu:
        copy, why = gpu_copy(index, gpu, len(embeddings))
        if copy is not None:
            target = copy
        else:
            print(f"index {params.factory}: on the CPU: {why}")
    *_, proper = layers(index)
    if isinstance(proper, faiss.IndexHNSW):  # its graph depends on the order of threads
        faiss.omp_set_num_threads(1)
    for _, block in embeddings.blocks():
        with faiss_errors(f"{params.factory}, to which vectors cannot be added", key):
            target.add(np.array(block, dtype=np.float32))
        progress.advance(len(block))
    progress.close()
    faiss.omp_set_num_threads(threads)
    if target is not index:
        index = faiss.index_gpu_to_cpu(target)
        set_effort(index, params)
    return index


def trained_empty(embeddings: Embeddings, params: Recipe, key: str = "index.factory", *, gpu: FaissGpu | None = None) -> Any:
    """An index without vectors, trained on a sample of the rows if its kind has anything to train; UserError as of `build`."""
    threads = torch.get_num_threads()
    faiss.omp_set_num_threads(threads)
    index = _empty(embeddings, params, key)
    skip_polysemous(index)
    if not index.is_trained:
        train(index, embeddings, params, key, threads=threads, gpu=gpu)
    return index


def train(index: Any, embeddings: Embeddings, params: Recipe, key: str, *, threads: int, gpu: FaissGpu | None) -> None:
    """Train an empty index on a sample of the rows, which is in memory only for this call."""
    sample = training_sample(embeddings, params.train_size, params.seed)
    with faiss_errors(f"{params.factory}, which cannot be trained on {len(sample)} vectors", key), dedupe_stderr():
        fill_centroids(index, train_transforms(index, sample, threads), threads, gpu)
        with clustered_on(gpu, index):
            index.train(sample)


def build_file(
    embeddings: Embeddings,
    params: Recipe,
    path: Path,
    key: str = "index.factory",
    *,
    gpu: FaissGpu | None = None,
    trained: Any | None = None,
) -> None:
    """Write the index that `build` makes to `path`. A Flat index takes the memory of one shard, whatever the corpus."""
    is_flat = isinstance(_empty(embeddings, params, key), faiss.IndexFlat)
    with new_file(path) as temporary:
        if is_flat:
            write_flat(embeddings, temporary)
        else:
            faiss.write_index(build(embeddings, params, key, gpu=gpu, trained=trained), str(temporary))


def write_flat(embeddings: Embeddings, path: Path) -> None:
    """Write the file that faiss.write_index makes of an IndexFlatIP of all rows: an empty index's, with other counts, and the vectors."""
    rows, width = len(embeddings), embeddings.manifest.width
    head = bytearray(faiss.serialize_index(faiss.IndexFlatIP(width)).tobytes())
    struct.pack_into("<q", head, len(FLAT) + 4, rows)  # after the kind and the width
    struct.pack_into("<Q", head, len(head) - 8, rows * width)  # at the end: how many numbers follow
    progress = Progress("index Flat", rows, "vectors")
    with path.open("wb") as file:
        file.write(head)
        for _, block in embeddings.blocks():
            file.write(np.ascontiguousarray(block, dtype="<f4").data)
            progress.advance(len(block))
    progress.close()


def _empty(embeddings: Embeddings, params: Recipe, key: str) -> Any:
    width = embeddings.manifest.width
    with faiss_errors(f"{params.factory!r} for width {width}", key):
        return faiss.index_factory(width, params.factory, faiss.METRIC_INNER_PRODUCT)


def skip_polysemous(index: Any) -> None:
    """Leave a PQ's centroids in the order of their clustering; no search of ours sees the order.

    By default faiss reorders them for polysemous search (Douze et al. 2016): up to two seconds of one core per sub-quantizer. `np` after a
    PQ in a factory string does the same for the indexes that take it.
    """
    for layer in layers(index):
        refining = [faiss.downcast_index(layer.refine_index)] if isinstance(layer, faiss.IndexRefine) else []
        for part in (layer, *refining):
            if hasattr(part, "do_polysemous_training"):
                part.do_polysemous_training = False


@contextmanager
def clustered_on(gpu: FaissGpu | None, index: Any) -> Iterator[None]:
    """Within this context, `train` assigns vectors to the centroids of inverted lists on the `gpu`, if there is one."""
    inverted: Any = faiss.try_extract_index_ivf(index) if gpu else None
    if gpu is None or inverted is None:
        yield
        return
    assigner = gpu.flat(inverted.d, inverted.metric_type)
    inverted.clustering_index = assigner
    try:
        yield
    finally:
        inverted.clustering_index = None  # faiss does not own it


def train_transforms(index: Any, sample: Floats, threads: int) -> Floats:
    """Train the transforms before the index proper: PCA and the like on one thread, OPQ on all. Return the sample as the index sees it.

    A PCA only projects: faiss would also subtract the mean m, from queries too, and (q - m) (d - m) ranks d by q d - m d.
    `sample` is [N, D]. `train` then finds this done (faiss, IndexPreTransform::train).
    """
    vectors = sample
    for layer in layers(index):
        for step in transforms_of(layer):
            if not step.is_trained:
                faiss.omp_set_num_threads(threads if isinstance(step, faiss.OPQMatrix) else 1)
                step.train(vectors)
                faiss.omp_set_num_threads(threads)
                if isinstance(step, faiss.PCAMatrix):
                    step.have_bias = False
            vectors = step.apply(vectors)
    return vectors


def fill_centroids(index: Any, vectors: Floats, threads: int, gpu: FaissGpu | None = None) -> None:
    """Fill an HNSW that holds the centroids of an IVF, if there is one: cluster on all threads, and add to the graph on one.

    `train` on one thread gives the same. `vectors` is the sample as the IVF sees it. `train` then finds this done (faiss,
    Level1Quantizer::train_q1).
    """
    *_, ivf = layers(index)
    quantizer = faiss.downcast_index(ivf.quantizer) if isinstance(ivf, faiss.IndexIVF) else None
    if not isinstance(quantizer, faiss.IndexHNSW):
        return
    clustering = faiss.Clustering(ivf.d, ivf.nlist, ivf.cp)
    clustering.train(vectors, gpu.flat(ivf.d, faiss.METRIC_L2) if gpu else faiss.IndexFlatL2(ivf.d))
    centroids = faiss.vector_to_array(clustering.centroids).reshape(ivf.nlist, ivf.d)
    if not quantizer.is_trained:
        quantizer.train(centroids)
    faiss.omp_set_num_threads(1)
    quantizer.add(centroids)
    faiss.omp_set_num_threads(threads)


@contextmanager
def dedupe_stderr() -> Iterator[None]:
    """Show each distinct line that faiss writes to stderr only once: it warns at every clustering, hundreds of times for an OPQ."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            for line in dict.fromkeys(captured.read().decode(errors="replace").splitlines()):
                print(f"faiss: {line}", file=sys.stderr)


@contextmanager
def faiss_errors(found: str, key: str) -> Iterator[None]:
    """Turn faiss's exceptions into a UserError about the factory string, except those of a full or failing disk or GPU."""
    try:
        yield
    except RuntimeError as error:
        if user_error(error):
            raise
        raise UserError(f"params.yaml: {key}: found {found}; faiss says: {reason(error)}") from None


def set_effort(index: Any, params: Recipe) -> None:
    """Write nprobe, efSearch, and k_factor into the index itself, so that every program that opens the file uses them."""
    for layer in layers(index):
        if isinstance(layer, faiss.IndexRefine):
            layer.k_factor = params.k_factor
        elif isinstance(layer, faiss.IndexIVF):
            layer.nprobe = min(params.nprobe, layer.nlist)
        elif isinstance(layer, faiss.IndexHNSW):
            layer.hnsw.efSearch = params.ef_search


def training_sample(embeddings: Embeddings, size: int, seed: int) -> Vectors:
    """`size` rows sampled uniformly (all, if there are fewer), float32 [size, D], in row order."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(embeddings))[:size])
    sample = np.empty((len(rows), embeddings.manifest.width), dtype=np.float32)
    for first, block in embeddings.blocks():
        begin, end = np.searchsorted(rows, [first, first + len(block)])
        sample[begin:end] = block[rows[begin:end] - first]
    return sample


def recall(queries_QD: Floats, found_QK: Ints, exact_QK: Ints, k: int, take: Callable[[Ints], Floats]) -> float:
    """Mean fraction of the k best rows that are among the first k found (faiss: intersection measure at k); k <= rows.

    `exact_QK` are an exact search's, and `take` returns the vectors of rows. A row that scores like the k-th best (to fp32 rounding: two
    libraries sum in different orders) counts as found, so that duplicates in a corpus are not held against an index.
    """
    hits = []
    for query_D, found, best in zip(queries_QD, found_QK[:, :k], exact_QK[:, :k], strict=True):
        others = found[(found >= 0) & ~np.isin(found, best)]
        scores = take(np.append(others, best[-1])) @ query_D
        is_tied = scores[:-1] >= scores[-1] - TIE * abs(scores[-1])
        hits.append((np.isin(best, found).sum() + is_tied.sum()) / k)
    return float(np.mean(hits))
