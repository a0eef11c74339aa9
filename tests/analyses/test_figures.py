"""Each analysis against a plain loop, scipy, or a case worked out by hand."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from tasks.analyses.geometry import alignment, best_rows, flat_map, mean_vector, rows_at, uniformity
from tasks.analyses.overlap import overlap
from tasks.analyses.pairwise import ROWS, document_scores, errors_of, summary
from tasks.core.files import file_digest
from tasks.core.retrieval.embeddings import Embeddings, Manifest, shard_name


@pytest.fixture
def embeddings(tmp_path: Path) -> Embeddings:
    """300 documents of one to four passages in shards that cut through documents."""
    draw = np.random.default_rng(0)
    owners = np.repeat(np.arange(300), draw.integers(1, 5, 300)).astype(np.int32)
    vectors = draw.normal(size=(len(owners), 8)).astype(np.float32)
    vectors[owners == 7] = vectors[np.flatnonzero(owners == 3)[0]]  # the text of another document
    sizes = [100, 1, 250, len(owners) - 351]
    digests = []
    for number, part in enumerate(np.split(vectors, np.cumsum(sizes)[:-1])):
        np.save(tmp_path / shard_name(number), part)
        digests.append(file_digest(tmp_path / shard_name(number)))
    np.save(tmp_path / "owners.npy", owners)
    return Embeddings(tmp_path, Manifest(len(owners), 8, "float32", sizes, "w", "t", 8, "", digests))


def all_vectors(embeddings: Embeddings) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.array(block) for _, block in embeddings.blocks()]), np.asarray(embeddings.owners())


def best_score(vectors: np.ndarray, owners: np.ndarray, query: np.ndarray, doc: int) -> float:
    return max(float(query @ vector) for vector, owner in zip(vectors, owners, strict=True) if owner == doc)


def test_overlap_is_divided_by_the_depth() -> None:
    first = {"q1": ["a", "b", "c"], "q2": ["a"], "q3": ["x"]}
    second = {"q1": ["c", "d", "a"], "q2": ["b"], "q4": ["x"]}
    assert overlap(first, second, 2) == pytest.approx((0 + 0) / 2)
    assert overlap(first, second, 3) == pytest.approx((2 / 3 + 0) / 2)
    assert overlap({f"q{n}": list("abcdefghij") for n in range(2)}, {"q0": list("ajklmnopqr")}, 10) == pytest.approx(0.2)
    assert overlap(first, {}, 3) is None


@pytest.mark.parametrize("rows", [ROWS, 7, 1])
def test_document_scores_are_those_of_the_best_passage(embeddings: Embeddings, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("tasks.analyses.pairwise.ROWS", rows)
    queries = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    parts = list(document_scores(queries, embeddings))
    docs, scores = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts], axis=1)
    assert docs.tolist() == list(range(300)), "each once"
    vectors, owners = all_vectors(embeddings)
    for query, doc in itertools.product(range(3), range(0, 300, 17)):
        assert scores[query, doc] == pytest.approx(best_score(vectors, owners, queries[query], doc), abs=1e-5)


def test_pairwise_errors_are_those_of_a_plain_loop(embeddings: Embeddings) -> None:
    queries = np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32)
    relevant = {0: [3], 1: [7, 250], 2: [299], 3: [0, 1, 2]}
    query = np.array([q for q, docs in relevant.items() for _ in docs])
    document = np.array([doc for docs in relevant.values() for doc in docs])
    vectors, owners = all_vectors(embeddings)
    expected = []
    for q, doc in zip(query, document, strict=True):
        own = best_score(vectors, owners, queries[q], doc)
        others = [best_score(vectors, owners, queries[q], other) for other in range(300) if other not in relevant[int(q)]]
        expected.append(sum(score > own + 1e-4 for score in others))  # the copy of document 3 is no error
    errors = errors_of(queries, embeddings, query, document)
    assert errors.tolist() == expected

    figures = summary(errors, query, depth=10)
    totals = [sum(e for e, q in zip(expected, query, strict=True) if q == number) for number in relevant]
    assert figures["total"] == pytest.approx(sum(totals) / 4)
    assert figures["top"] == pytest.approx(sum(min(e, 10) for e in expected) / 4)


def test_histogram_of_pairwise_errors() -> None:
    errors, query = np.array([0, 3, 4, 1000]), np.array([0, 1, 1, 5])
    figures = summary(errors, query, depth=200)
    assert figures["histogram"] == [
        {"from": 0, "queries": pytest.approx(1 / 3), "errors": 0.0},
        {"from": 5, "queries": pytest.approx(1 / 3), "errors": pytest.approx(7 / 1007)},
        {"from": 1000, "queries": pytest.approx(1 / 3), "errors": pytest.approx(1000 / 1007)},
    ]
    assert figures["top"] == pytest.approx((0 + 7 + 200) / 3)


def test_alignment_and_uniformity() -> None:
    draw = np.random.default_rng(3)
    first, second = draw.normal(size=(20, 5)).astype(np.float32), draw.normal(size=(20, 5)).astype(np.float32)

    def unit(vector: np.ndarray) -> np.ndarray:
        return vector / math.sqrt(sum(x * x for x in vector))

    assert alignment(first, second) == pytest.approx(
        sum(sum((unit(a) - unit(b)) ** 2) for a, b in zip(first, second, strict=True)) / 20, rel=1e-5
    )
    assert alignment(first, 3 * first) == pytest.approx(0, abs=1e-10)
    pairs = [math.exp(-2 * sum((unit(a) - unit(b)) ** 2)) for a, b in itertools.combinations(first, 2)]
    assert uniformity(first) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-5)


def test_rows_best_passages_and_means(embeddings: Embeddings) -> None:
    vectors, owners = all_vectors(embeddings)
    rows = np.array([500, 0, 100, 99])
    assert np.array_equal(rows_at(embeddings, rows), vectors[rows])
    assert mean_vector(embeddings) == pytest.approx(vectors.astype(np.float64).mean(0))
    queries, docs = np.random.default_rng(4).normal(size=(5, 8)).astype(np.float32), np.array([299, 0, 3, 100, 50])
    for passage, query, doc in zip(best_rows(embeddings, queries, docs), queries, docs, strict=True):
        assert float(query @ passage) == pytest.approx(best_score(vectors, owners, query, int(doc)), abs=1e-5)


def test_maps_are_the_same_twice_and_keep_clusters_apart() -> None:
    draw = np.random.default_rng(5)
    centers = np.eye(6)[:2].repeat(15, axis=0)
    vectors = (centers + 0.05 * draw.normal(size=(30, 6))).astype(np.float32)
    points = np.array(flat_map(vectors, 7))
    assert points.tolist() == np.array(flat_map(vectors, 7)).tolist()
    inside = max(np.linalg.norm(points[a] - points[b]) for half in (range(15), range(15, 30)) for a, b in itertools.combinations(half, 2))
    between = np.linalg.norm(points[:15].mean(0) - points[15:].mean(0))
    assert between > inside / 2
    assert flat_map(vectors[:2], 7) == [(0.0, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize("vector", [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
def test_equal_vectors_have_one_place(vector: list[float]) -> None:
    """scikit-learn divides by their spread, which is 0, and then reads outside its memory."""
    assert flat_map(np.array([vector] * 5, dtype=np.float32), 7) == [(0.0, 0.0)] * 5


def test_uniformity_counts_the_distance_from_0() -> None:
    vectors = np.array([[0, 0], [0, 0], [3, 4]], dtype=np.float32)
    assert uniformity(vectors) == pytest.approx(math.log((1 + 2 * math.exp(-2)) / 3)), "|0 - 0| is 0, |0 - u| is 1"
