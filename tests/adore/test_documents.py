"""Scores with a gradient are the index's own; centroids written back are what faiss searches with."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.adore import documents as module
from tasks.adore.documents import Centroids, Compressed, Exact, Rescored, Shared
from tasks.core.errors import UserError
from tasks.core.retrieval.ann.build import build
from tasks.core.retrieval.ann.trained import Trained
from tasks.core.retrieval.embeddings import Embeddings, Manifest, open_embeddings, write_manifest
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.workers.gang import Gang
from tests.fake_gpu import GPU, FakeGpu, fake_gpu
from tests.gangs import as_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH = 300, 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Rows of all three shards are equal, and the best for some queries."""
    rows = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32) + 0.5
    rows[[299, 150, 160, 3]] = 2 * np.sign(rows[3])
    return rows


@pytest.fixture(scope="module")
def embeddings(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    folder = tmp_path_factory.mktemp("embeddings")
    shards = [150, 1, 149]
    for number, part in enumerate(np.split(vectors, np.cumsum(shards)[:-1])):
        np.save(folder / f"{number:05}.npy", part)
    (folder / "tokens").mkdir()
    np.save(folder / "tokens" / "owners.npy", np.arange(ROWS, dtype=np.int32))
    write_table(folder / "tokens" / "ids.parquet", IDS, [pa.table([[f"d{n:03}" for n in range(ROWS)]], schema=IDS)])
    write_manifest(folder, Manifest(ROWS, WIDTH, "float32", shards, "", "", 8, ""), folder / "tokens")
    return open_embeddings(folder)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)


def copy_as_type(embeddings: Embeddings, dtype: str, folder: Path) -> Embeddings:
    """The same vectors in another type, in `folder`."""
    shutil.copytree(embeddings.folder, folder)
    for shard in folder.glob("[0-9]*.npy"):
        np.save(shard, np.load(shard).astype(dtype))
    write_manifest(folder, replace(embeddings.manifest, dtype=dtype), embeddings.folder / "tokens")
    return open_embeddings(folder)


INDEXES: dict[str, faiss.Index] = {}  # OPQ takes a second to train


def build_index(embeddings: Embeddings, factory: str) -> faiss.Index:
    if factory not in INDEXES:
        recipe = SimpleNamespace(factory=factory, nprobe=4, ef_search=512, k_factor=4, train_size=10**6, seed=0)
        INDEXES[factory] = build(embeddings, recipe)
    return faiss.deserialize_index(faiss.serialize_index(INDEXES[factory]))


@pytest.mark.parametrize(("room", "at_once"), [(2**30, 10**6), (2**30, 150), (0, 10**6)])  # 150: a group is a shard
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_gpu_finds_what_a_cpu_finds(
    embeddings: Embeddings,
    queries: np.ndarray,
    room: int,
    at_once: int,
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy_as_type(embeddings, dtype, tmp_path / "of")
    exact = Exact(open_embeddings(tmp_path / "of"), CPU, tmp_path)
    scores, rows = exact.search(queries, 20)
    with fake_gpu():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (room or 100, 2**30))
        monkeypatch.setattr(module, "rows_at_once", lambda *_: at_once)
        documents = Exact(open_embeddings(tmp_path / "of"), GPU, tmp_path)
        assert (documents.resident is None) == (room == 0)
        assert len(list(documents.blocks())) == (1 if room and (at_once > ROWS or dtype == "float16") else 3)
        for _ in range(2):  # the second time with what is known of the vectors
            hits = module.search_documents(documents, torch.from_numpy(queries).to(GPU), 20)
            np.testing.assert_array_equal(hits[1], rows)
            np.testing.assert_allclose(hits[0], scores, rtol=1e-5, atol=1e-6)
        assert bool(documents.halved) == (room > 0), "what is read from disk is not kept in another form"
        row_scores = documents.scores(torch.from_numpy(queries).to(GPU), rows).cpu().numpy()
        np.testing.assert_allclose(row_scores, scores, rtol=1e-5, atol=1e-6)
    output = capsys.readouterr().out
    assert ("every step reads them from disk" in output) == (room == 0)
    assert ("encode.dtype: float16" in output) == (room == 0 and dtype == "float32")


@pytest.mark.parametrize(("dtype", "bytes_per_number"), [("float32", 6), ("float16", 2)])
def test_a_gpu_holds_vectors_that_take_half_of_its_free_memory(
    dtype: str, bytes_per_number: int, embeddings: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes per number; float32 counts its float16 copy too."""
    stored = copy_as_type(embeddings, dtype, tmp_path / "of")
    for short in (0, 2):
        with fake_gpu(), monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "mem_get_info", lambda *_, short=short: (2 * bytes_per_number * WIDTH * ROWS - short, 2**30))
            patch.setattr(module, "rows_at_once", lambda *_: ROWS)
            assert (Exact(stored, GPU, tmp_path).resident is None) == (short > 0)


def assert_scores_agree(documents: module.Documents, queries: np.ndarray) -> None:
    """`scores` gives the rows that a search found the scores that the search gave."""
    scores, rows = documents.search(queries, 30)
    is_row = rows >= 0
    assert is_row.any()
    row_scores = documents.scores(torch.from_numpy(queries), rows).detach().numpy()
    np.testing.assert_allclose(row_scores[is_row], scores[is_row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("at_once", [7, 10**6])
def test_exact_search_and_scores(
    at_once: int, embeddings: Embeddings, vectors: np.ndarray, queries: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", at_once)
    exact = Exact(embeddings, CPU, tmp_path / "none")
    exact.scores(torch.from_numpy(queries), np.zeros((len(queries), 1), dtype=np.int64))  # needs no copy, and no folder for one
    exact = Exact(embeddings, CPU, tmp_path)
    assert len(exact.rounded_blocks) == -(-ROWS // at_once) and not list(tmp_path.iterdir()), "a file without a name"
    assert_scores_agree(exact, queries)
    products = queries @ vectors.T
    np.testing.assert_array_equal(exact.search(queries, 5)[1][:, :5], np.argsort(-products, axis=1, kind="stable")[:, :5])
    rows = np.array([[3, 299, 150, -1], [0, 1, 2, 151]])
    query_vectors = torch.from_numpy(queries[:2]).requires_grad_()
    scores = exact.scores(query_vectors, rows)
    plain = [[float(sum(q * vectors[max(r, 0)])) for r in row] for q, row in zip(queries[:2].astype(np.float64), rows, strict=True)]
    np.testing.assert_allclose(scores.detach().numpy(), plain, rtol=1e-4, atol=1e-5)
    scores[0, 1].backward()
    assert query_vectors.grad is not None
    np.testing.assert_array_equal(query_vectors.grad.numpy(), np.stack([vectors[299], np.zeros(WIDTH, np.float32)]))
    assert exact.search(queries, 10**6)[1].max() == ROWS - 1  # more than there are is all there are


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("at_once", [7, 10**6])
def test_ranks_share_the_vectors_and_find_what_one_finds(
    ranks: int, at_once: int, embeddings: Embeddings, queries: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; of four ranks over three shards, one has none."""
    monkeypatch.setattr(module, "ROWS", at_once)
    exact = Exact(embeddings, CPU, tmp_path)
    expected, rows = exact.search(queries, 20), np.array([[3, 299, 150, -1, 3], [0, 1, 2, 151, 149]])
    query_vectors = torch.from_numpy(queries[:2]).requires_grad_()
    scores = exact.scores(query_vectors, rows)
    scores.square().sum().backward()

    def rank(gang: Gang) -> tuple[int, tuple[np.ndarray, np.ndarray], torch.Tensor, torch.Tensor | None]:
        shared, rank_queries = Shared(embeddings, CPU, tmp_path, gang), torch.from_numpy(queries[:2]).requires_grad_()
        hits, row_scores = shared.search(queries, 20), shared.scores(rank_queries, rows)
        row_scores.square().sum().backward()
        return len(shared.part.embeddings), hits, row_scores, rank_queries.grad

    outcomes = as_ranks(ranks, rank)
    assert sum(size for size, *_ in outcomes) == ROWS and max(size for size, *_ in outcomes) < ROWS
    for _, (best, best_rows), row_scores, gradient in outcomes:
        np.testing.assert_array_equal(best_rows, expected[1])
        np.testing.assert_array_equal(best, expected[0])
        assert torch.equal(row_scores, scores) and query_vectors.grad is not None and gradient is not None
        assert torch.equal(gradient, query_vectors.grad)
    everything = as_ranks(ranks, lambda gang: Shared(embeddings, CPU, tmp_path, gang).search(queries, 10**6))[0][1]
    assert (np.sort(everything[:, :ROWS], axis=1) == np.arange(ROWS)).all() and (everything[:, ROWS:] == -1).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ranks_on_gpus_find_what_one_gpu_finds(embeddings: Embeddings, queries: np.ndarray, dtype: str, tmp_path: Path) -> None:
    """Bit for bit, whichever type the vectors are held in."""
    stored, rows = copy_as_type(embeddings, dtype, tmp_path / "of"), np.array([[3, 299, 150, -1, 3], [0, 1, 2, 151, 149]])

    def search_and_score(documents: module.Documents) -> list[np.ndarray]:
        query_vectors = torch.from_numpy(queries).to(GPU)
        return [*module.search_documents(documents, query_vectors, 20), documents.scores(query_vectors[:2], rows).cpu().numpy()]

    def rank(gang: Gang) -> list[np.ndarray]:
        with FakeGpu():  # a mode is of one thread
            return search_and_score(Shared(stored, GPU, tmp_path, gang))

    with fake_gpu():
        expected = search_and_score(Exact(stored, GPU, tmp_path))
        for ranks in (2, 4):
            for ours in as_ranks(ranks, rank):
                for array, expected_array in zip(ours, expected, strict=True):
                    np.testing.assert_array_equal(array, expected_array)


@pytest.mark.parametrize(
    "factory", ["Flat", "PQ4x4", "OPQ2_4,PQ2x4", "IVF8,Flat", "IVF8,PQ4x4", "OPQ2,IVF1,PQ2x8", "SQ8", "HNSW16", "PCA4,Flat"]
)
def test_scores_over_any_index_are_its_own(factory: str, embeddings: Embeddings, queries: np.ndarray) -> None:
    assert_scores_agree(Compressed(build_index(embeddings, factory), CPU, "adore.a.index"), queries)


@pytest.mark.parametrize("factory", ["L2norm,Flat", "PQ4x4fs"])
def test_an_index_whose_scores_are_not_those_of_its_vectors_is_refused(factory: str, embeddings: Embeddings) -> None:
    with pytest.raises(UserError, match=r"params.yaml: adore.a.index: this index does not score by its decoded vectors"):
        Compressed(build_index(embeddings, factory), CPU, "adore.a.index")


@pytest.mark.parametrize("factory", ["PQ4x4", "IVF8,PQ4x4", "PCA4,Flat"])
def test_what_an_index_finds_is_scored_by_the_uncompressed_vectors(
    factory: str, embeddings: Embeddings, vectors: np.ndarray, queries: np.ndarray, tmp_path: Path
) -> None:
    """DRhard: passage_embeddings[retrieved ids], times the query, in a plain loop."""
    index = build_index(embeddings, factory)
    documents = Rescored(index, Exact(embeddings, CPU, tmp_path))
    scores, rows = documents.search(queries, 30)
    for query_rows, top in zip(rows, index.search(queries, 30)[1], strict=True):
        assert set(top) <= set(query_rows)
    query_vectors = torch.from_numpy(queries).requires_grad_()
    row_scores = documents.scores(query_vectors, rows)
    for query, (query_rows, query_scores) in enumerate(zip(rows, row_scores.detach().numpy(), strict=True)):
        for row, score in zip(query_rows, query_scores, strict=True):
            assert score == pytest.approx(
                sum(float(q) * float(v) for q, v in zip(queries[query], vectors[max(row, 0)], strict=True)), abs=1e-4
            )
    assert not np.allclose(scores, row_scores.detach().numpy(), atol=1e-2), "the index ranks by its codes"
    row_scores[0, 0].backward()
    assert query_vectors.grad is not None
    np.testing.assert_array_equal(query_vectors.grad[0].numpy(), vectors[rows[0, 0]])


TRAINABLE = ["PQ2", "OPQ2,IVF1,PQ2x8", "OPQ2_4,PQ2", "PCA4,PQ2"]  # 256 centroids take a while to find


@pytest.mark.parametrize("factory", TRAINABLE)
def test_folding_changes_no_score_and_trained_centroids_are_what_faiss_searches(
    factory: str, embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    index = build_index(embeddings, factory)
    before = index.search(queries, 30)
    centroids = Centroids(index, CPU, "adore.a.index")
    after = centroids.search(queries, 30)
    np.testing.assert_allclose(after[0][:, :30], before[0], rtol=1e-4, atol=1e-4)
    assert (np.sort(after[1][:, :30]) == np.sort(before[1])).mean() > 0.98  # equal but for ties to rounding
    assert_scores_agree(centroids, queries)
    torch.manual_seed(0)
    with torch.no_grad():
        centroids.weight.add_(torch.randn_like(centroids.weight))
    assert_scores_agree(centroids, queries)  # a search writes back first
    changed = centroids.search(queries, 30)
    assert np.abs(changed[0][:, :30] - before[0]).max() > 0.1
    faiss.write_index(index, str(tmp_path / "i"))
    scores, rows = faiss.read_index(str(tmp_path / "i")).search(queries, 30)  # and a file keeps them
    np.testing.assert_array_equal(rows, changed[1][:, :30])
    np.testing.assert_array_equal(scores, changed[0][:, :30])


def test_centroids_of_a_former_training_are_searched_and_scored(embeddings: Embeddings, queries: np.ndarray) -> None:
    index = build_index(embeddings, "PQ2")
    own = Centroids(index, CPU, "k").weight.detach().numpy().copy()
    assert (Centroids.of(build_index(embeddings, "PQ2"), None, CPU, "k").weight.detach().numpy() == own).all()
    centroids = Centroids.of(index, Trained("PQ2", index, own * -2), CPU, "k")
    decoded = index.reconstruct_n(0, ROWS)  # by what the index holds, before a search writes the centroids into it
    np.testing.assert_allclose(decoded, -2 * build_index(embeddings, "PQ2").reconstruct_n(0, ROWS), rtol=1e-5)
    rows = np.arange(ROWS)[None].repeat(len(queries), 0)
    scores = centroids.scores(torch.from_numpy(queries), rows).detach().numpy()
    np.testing.assert_allclose(scores, queries @ decoded.T, rtol=1e-4, atol=1e-4)
    assert Centroids.of(index, Trained("PQ2", index), CPU, "k").weight.detach().numpy().tolist() == (own * -2).tolist(), "the index's own"


@pytest.mark.parametrize("factory", TRAINABLE)
def test_gradients_of_centroids_and_queries_by_hand(factory: str, embeddings: Embeddings, queries: np.ndarray) -> None:
    """s = sum over m of q'_m . c[m, code_m]: a centroid's gradient is q'_m times the weighted count of its code."""
    index = build_index(embeddings, factory)
    centroids = Centroids(index, CPU, "k")
    rows, weights = np.array([[3, 17, 3, 250]]), np.array([[1.0, -2.0, 0.5, 3.0]])
    query_vectors = torch.from_numpy(queries[:1]).requires_grad_()
    (centroids.scores(query_vectors, rows) * torch.from_numpy(weights)).sum().backward()
    rotated = queries[0] if centroids.rotation is None else centroids.rotation.numpy() @ queries[0]
    M, _, S = centroids.weight.shape
    expected = np.zeros(centroids.weight.shape)
    for row, weight in zip(rows[0], weights[0], strict=True):
        for m in range(M):
            expected[m, centroids.codes[row, m]] += weight * rotated[m * S : (m + 1) * S]
    assert centroids.weight.grad is not None and query_vectors.grad is not None
    np.testing.assert_allclose(centroids.weight.grad.numpy(), expected, rtol=1e-4, atol=1e-5)
    if factory not in ("OPQ2_4,PQ2", "PCA4,PQ2"):  # there the decoded vector lies in the smaller space
        decoded = [decode_by_faiss(index, int(row)) for row in rows[0]]
        np.testing.assert_allclose(query_vectors.grad[0].numpy(), np.array(decoded).T @ weights[0], rtol=1e-3, atol=1e-3)


def decode_by_faiss(index: faiss.Index, row: int) -> np.ndarray:
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        inverted.make_direct_map()
    decoded: np.ndarray = index.reconstruct(row)
    return decoded


@pytest.mark.parametrize("factory", ["Flat", "PCA4,PQ2x4", "SQ8", "PQ4x4", "IVF8,PQ4x4"])
def test_index_without_trainable_centroids_is_refused(factory: str, embeddings: Embeddings) -> None:
    with pytest.raises(UserError, match=r"params.yaml: adore.a.index: centroids: true requires PQ"):
        Centroids(build_index(embeddings, factory), CPU, "adore.a.index")
