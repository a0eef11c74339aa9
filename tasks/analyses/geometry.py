"""Analyses of the vectors: alignment and uniformity, mean scores, and maps in two dimensions."""

import numpy as np
import numpy.typing as npt

from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.ranked import Floats
from tasks.core.tables.ids import Ints


def normalize(vectors_ND: Floats) -> Floats:
    """Scale vectors to length 1; zero vectors stay 0."""
    norms = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    units: Floats = np.divide(vectors_ND, norms, out=np.zeros_like(vectors_ND), where=norms > 0)
    return units


def alignment(queries_PD: Floats, documents_PD: Floats) -> float:
    """Mean squared distance of relevant pairs, as unit vectors (Wang, Isola: ICML 2020, arXiv:2005.10242, with alpha 2). 0 is best."""
    return float(((normalize(queries_PD) - normalize(documents_PD)) ** 2).sum(1).mean())


def uniformity(vectors_ND: Floats) -> float:
    """Log of the mean of exp(-2 distance^2) over all pairs of unit vectors (same paper, with t 2). Lower is more uniform."""
    units = normalize(vectors_ND).astype(np.float64)
    lengths = (units**2).sum(1)  # 1, or 0
    squared = np.maximum(0, lengths[:, None] + lengths - 2 * units @ units.T)
    pairs = np.triu_indices(len(units), 1)
    return float(np.log(np.exp(-2 * squared[pairs]).mean()))


def mean_vector(embeddings: Embeddings) -> npt.NDArray[np.float64]:
    """The mean of all passage vectors, [D]. A query's inner product with it is the query's mean score over the corpus."""
    total = np.zeros(embeddings.manifest.width, dtype=np.float64)
    for _, block in embeddings.blocks():
        for first in range(0, len(block), 2**16):
            total += np.asarray(block[first : first + 2**16], dtype=np.float64).sum(0)
    return total / len(embeddings)


def rows_at(embeddings: Embeddings, rows: Ints) -> Floats:
    """The vectors of the passages `rows`, [N, D]."""
    vectors = np.empty((len(rows), embeddings.manifest.width), dtype=np.float32)
    for start, block in embeddings.blocks():
        places = np.flatnonzero((rows >= start) & (rows < start + len(block)))
        vectors[places] = block[rows[places] - start]
    return vectors


def best_rows(embeddings: Embeddings, queries_PD: Floats, documents: Ints) -> Floats:
    """For each (query, document) pair [P], the vector of the document's passage that scores highest for the query, [P, D]."""
    owners = embeddings.owners()
    first, last = np.searchsorted(owners, documents, "left"), np.searchsorted(owners, documents, "right")
    vectors = rows_at(embeddings, np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)]))
    ends = np.cumsum(last - first)
    best = [
        begin + int(np.argmax(vectors[begin:end] @ query_D))
        for begin, end, query_D in zip(ends - (last - first), ends, queries_PD, strict=True)
    ]
    return vectors[best]


def flat_map(vectors_ND: Floats, seed: int) -> list[tuple[float, float]]:
    """t-SNE of cosine distances in two dimensions (van der Maaten, Hinton: JMLR 2008), by scikit-learn; perplexity 30, less for few points.

    Two points or fewer are placed on a line. Equal vectors, which crash scikit-learn with a segmentation fault, are placed at one point.
    """
    units_ND = normalize(vectors_ND)
    if len(vectors_ND) < 3:
        return [(float(place), 0.0) for place in range(len(vectors_ND))]
    if (units_ND == units_ND[0]).all():
        return [(0.0, 0.0)] * len(vectors_ND)
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(vectors_ND) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(units_ND)
    return [(round(float(x), 3), round(float(y), 3)) for x, y in points]
