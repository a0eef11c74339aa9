"""faiss indexes of embeddings: what they lose against a plain-Python ranking, what they refuse, what the stage writes."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.ann.build import build, build_file, recall, set_effort
from tasks.core.retrieval.ann.search import ShortLists, open_index, refuse_other_scores, search_index
from tasks.core.retrieval.embeddings import Embeddings, Manifest, open_embeddings, write_manifest
from tasks.core.retrieval.exact import exact_search
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.index.params import Index

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 16
CPU = torch.device("cpu")


def write_embeddings(folder: Path, vectors: np.ndarray, shards: list[int]) -> Embeddings:
    folder.mkdir(parents=True)
    ends = np.cumsum(shards)
    for number, (first, end) in enumerate(zip(ends - shards, ends, strict=True)):
        np.save(folder / f"{number:05}.npy", vectors[first:end])
    (folder / "tokens").mkdir()
    np.save(folder / "tokens" / "owners.npy", np.arange(len(vectors), dtype=np.int32))
    write_table(folder / "tokens" / "ids.parquet", IDS, [pa.table([[f"d{n}" for n in range(len(vectors))]], schema=IDS)])
    write_manifest(folder, Manifest(len(vectors), vectors.shape[1], str(vectors.dtype), shards, "", "", 8, ""), folder / "tokens")
    return open_embeddings(folder)


def draw_vectors(rows: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def reference_recall(retrieved: np.ndarray, queries: np.ndarray, vectors: np.ndarray, k: int) -> float:
    """Mean share of the true top k that was retrieved, by Python's own sort in float64."""
    shares = []
    for query, rows in zip(queries.astype(np.float64), retrieved, strict=True):
        scores = {row: float(np.dot(query, vector)) for row, vector in enumerate(vectors.astype(np.float64))}
        best = sorted(scores, key=lambda row: scores[row], reverse=True)[:k]
        shares.append(len(set(best) & set(rows[:k].tolist())) / k)
    return sum(shares) / len(shares)


@pytest.mark.parametrize(
    ("factory", "low", "high"),
    [
        ("Flat", 1.0, 1.0),
        ("IVF8,Flat", 0.2, 0.95),
        ("PQ4x4", 0.05, 0.95),
        ("OPQ4,IVF4,PQ4x4", 0.05, 0.95),
        ("HNSW8", 0.3, 1.0),
        ("OPQ4,IVF8_HNSW4,PQ4x4", 0.05, 0.95),
        ("PCA8,Flat", 0.05, 0.95),
        ("SQ8", 0.8, 1.0),
    ],
)
def test_recall_equals_a_plain_loop(factory: str, low: float, high: float, tmp_path: Path) -> None:
    vectors, queries = draw_vectors(600), draw_vectors(20, 1)
    embeddings = write_embeddings(tmp_path / "e", vectors, [100, 1, 499])
    faiss.write_index(build(embeddings, Index(factory=factory, nprobe=2, ef_search=16)), str(tmp_path / "index.faiss"))
    index = faiss.read_index(str(tmp_path / "index.faiss"))  # a plain faiss file
    assert (index.ntotal, index.d, index.metric_type) == (600, WIDTH, faiss.METRIC_INNER_PRODUCT)
    rows = exact_search(queries, embeddings.blocks(), 10, CPU)[1]
    hits = search_index(open_index(tmp_path / "index.faiss"), queries, 10)[1]
    figure = recall(queries, hits, rows, 10, embeddings.take)
    assert figure == pytest.approx(reference_recall(hits, queries, vectors, 10))
    assert low <= figure <= high


@pytest.mark.parametrize("factory", ["PCA16,Flat", "PCAR16,SQfp16", "PCA16,Flat,RFlat"])
def test_a_pca_of_all_dimensions_keeps_inner_products(factory: str, tmp_path: Path) -> None:
    """Vectors far from the origin, as encoders make them: with centered queries, faiss's default, their order is another."""
    vectors, queries = draw_vectors(600) + 2 * draw_vectors(1, 2), draw_vectors(20, 1) + 2 * draw_vectors(1, 3)
    build_file(write_embeddings(tmp_path / "e", vectors, [200, 400]), Index(factory=factory), tmp_path / "i")
    index = open_index(tmp_path / "i", 600, WIDTH)
    scores, rows = search_index(index, queries, 10)
    plain = queries.astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_allclose(scores, np.take_along_axis(plain, rows, 1), rtol=0.01, atol=0.05)
    assert reference_recall(rows, queries, vectors, 10) > 0.98
    refuse_other_scores(index, "here")  # decoded vectors score like it


@pytest.mark.parametrize("factory", ["PQ4x4", "IVF8,PQ4x4", "IVF8_HNSW4,Flat,Refine(PQ4x4)", "OPQ4,PQ4x4"])
def test_a_pq_without_polysemous_order_finds_the_same(factory: str, tmp_path: Path) -> None:
    vectors, queries = draw_vectors(600), draw_vectors(20, 1)
    params = Index(factory=factory, nprobe=2, ef_search=16)
    plain = faiss.index_factory(WIDTH, factory, faiss.METRIC_INNER_PRODUCT)
    plain.train(vectors)
    plain.add(vectors)
    set_effort(plain, params)
    ours = build(write_embeddings(tmp_path / "e", vectors, [200, 400]), params)
    for index, trained in ((plain, {True}), (ours, {False})):
        inner = [index, *(faiss.downcast_index(getattr(index, name)) for name in ("refine_index", "index") if hasattr(index, name))]
        assert {part.do_polysemous_training for part in inner if hasattr(part, "do_polysemous_training")} == trained
    for actual, expected in zip(search_index(ours, queries, 10), search_index(plain, queries, 10), strict=True):
        assert (actual == expected).all()


@pytest.mark.parametrize("factory", ["IVF8_HNSW4,Flat", "RR8,IVF8_HNSW4,PQ4x4np,RFlat"])
def test_an_hnsw_of_centroids_is_that_of_faiss(factory: str, tmp_path: Path) -> None:
    """On one thread, where faiss itself puts centroids into the graph in their order."""
    vectors = draw_vectors(600)
    embeddings = write_embeddings(tmp_path / "e", vectors, [200, 400])
    plain = faiss.index_factory(WIDTH, factory, faiss.METRIC_INNER_PRODUCT)
    plain.train(vectors)
    plain.add(vectors)
    set_effort(plain, Index(factory=factory))
    faiss.write_index(plain, str(tmp_path / "plain"))
    faiss.write_index(build(embeddings, Index(factory=factory)), str(tmp_path / "ours"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "plain").read_bytes()


def test_the_same_seed_builds_the_same_file(tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(500), [200, 300])
    files = []
    for number, seed in enumerate((1, 1, 2)):
        faiss.write_index(build(embeddings, Index(factory="IVF4,PQ4x4", train_size=300, seed=seed)), str(tmp_path / str(number)))
        files.append((tmp_path / str(number)).read_bytes())
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("copies", [5, 30])
def test_duplicates_at_the_last_rank_do_not_lower_recall(tmp_path: Path, copies: int) -> None:
    """Copies beyond what an exact search returns after rank k counted as misses."""
    vectors = np.repeat(draw_vectors(40), copies, axis=0)  # ranks 1, 3, and 7 are amid equals
    queries = draw_vectors(30, 1)
    embeddings = write_embeddings(tmp_path / "e", vectors, [13, len(vectors) - 13])
    index = build(embeddings, Index())
    for k in (1, 3, 7, 200):
        rows = exact_search(queries, embeddings.blocks(), k, CPU)[1]
        assert recall(queries, search_index(index, queries, k)[1], rows, k, embeddings.take) == 1.0
        other_copies = rows[:, :k] // copies * copies + copies - 1 - rows[:, :k] % copies
        assert recall(queries, other_copies, rows, k, embeddings.take) == 1.0


def test_recall_by_hand() -> None:
    vectors = np.array([[9, 1], [8, 2], [7, 3], [7, 4], [6, 5]] + [[0, 0]] * 5, dtype=np.float32)
    exact = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])

    def recall_at(k: int, found: list[list[int]]) -> float:
        return recall(np.eye(2, dtype=np.float32), np.array(found), exact, k, vectors.__getitem__)

    assert recall_at(3, [[0, 1, 3], [4, 3, 2]]) == 1.0  # 3 is as good as 2
    assert recall_at(3, [[2, 3, 4], [4, -1, -1]]) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert recall_at(1, [[1], [4]]) == 0.5
    assert recall_at(3, [[7, 8, 9], [7, 8, -1]]) == 0.0


@pytest.mark.parametrize(("factory", "expected"), [("IVF8,Flat", 5), ("IVF4,Flat", 4), ("PCA8,IVF8,Flat", 5), ("IVF8,PQ4x4,RFlat", 5)])
def test_nprobe_is_written_into_the_file(factory: str, expected: int, tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(500), [500])
    faiss.write_index(build(embeddings, Index(factory=factory, nprobe=5)), str(tmp_path / "i"))
    assert faiss.extract_index_ivf(faiss.read_index(str(tmp_path / "i"))).nprobe == expected


@pytest.mark.parametrize("factory", ["PQ4x4,RFlat", "OPQ4,IVF4,PQ4x4,RFlat", "IVF4,PQ4x4,Refine(SQ8)"])
def test_refined_indexes_score_more_candidates_again(factory: str, tmp_path: Path) -> None:
    vectors, queries = draw_vectors(600), draw_vectors(20, 1)
    embeddings = write_embeddings(tmp_path / "e", vectors, [600])
    exact = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    recalls = {}
    for k_factor in (1, 5, 60):
        faiss.write_index(build(embeddings, Index(factory=factory, nprobe=4, k_factor=k_factor)), str(tmp_path / "i"))
        index = faiss.read_index(str(tmp_path / "i"))
        assert index.k_factor == k_factor
        scores, rows = search_index(index, queries, 10)
        assert (np.diff(scores, axis=1) <= 0).all()
        recalls[k_factor] = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(rows, exact, strict=True)])
    assert recalls[1] < recalls[5] < recalls[60]
    assert recalls[60] > 0.95, "all 600 rows"
    assert Index().k_factor == 4


def test_short_lists_are_counted_and_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(100), [100])
    index = build(embeddings, Index(factory="PCA8,IVF8,SQ8,RFlat", nprobe=3))
    short = ShortLists(10).count(np.array([10, 12, 10]))
    short.warn("x", index)
    assert not capsys.readouterr().out
    short.count(np.array([11, 3, 7])).count(np.array([], dtype=np.int64)).count(np.array([9, 10])).warn("x", index, "index.")
    assert capsys.readouterr().out == (
        "x: the index found too few results for 3 of 8 queries, 3 of 10 at worst; raise index.nprobe (3 of 8 inverted lists probed)\n"
    )
    single = ShortLists(1000).count(np.array([0]))
    indexes = [build(embeddings, Index(factory="HNSW8", ef_search=77)), build(embeddings, Index(factory="IVF8,Flat", nprobe=9))]
    capsys.readouterr()
    for searched in indexes:
        single.warn("y", searched, file=sys.stderr)
    line = "y: the index found too few results for 1 of 1 query, 0 of 1,000 at worst; "
    assert capsys.readouterr().err.splitlines() == [
        line + "raise ef_search (77), or the number after HNSW",
        line + "choose another factory string",
    ]


@pytest.mark.parametrize("factory", ["HNSW8", "PCA8,HNSW8", "HNSW8,RFlat", "PCA8,HNSW8_SQ8,RFlat"])
def test_ef_search_is_written_into_the_file(factory: str, tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(100), [100])
    faiss.write_index(build(embeddings, Index(factory=factory, ef_search=77)), str(tmp_path / "i"))
    index = faiss.read_index(str(tmp_path / "i"))  # which owns those within
    inner = index
    if factory.endswith(",RFlat"):
        inner = faiss.downcast_index(inner.base_index)
    if factory.startswith("PCA"):
        inner = faiss.downcast_index(inner.index)
    assert inner.hnsw.efSearch == 77


@pytest.mark.parametrize("factory", ["Flut", "PQ7", "IVF,Flat", "IVF64,Flat", "PQ4x8", "", "Flat,Flat,", "IDMap,Flat"])
def test_invalid_factory_is_refused_in_one_line(factory: str, tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(30), [30])
    with pytest.raises(UserError, match=r"params.yaml: index.factory: .*faiss says: \S") as refusal:
        build(embeddings, Index.model_construct(**{**Index().model_dump(), "factory": factory}))
    assert "\n" not in str(refusal.value)


def test_unreadable_index_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"no index")
    for name in ("bad", "missing"):
        with pytest.raises(UserError, match=f"{name}: unreadable faiss index") as refusal:
            open_index(tmp_path / name)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("factory", ["PQ4x4fs,RFlat", "IVF8,SQ8", "IVF8_HNSW4,PQ4x4", "PCA8,HNSW8_SQ8", "OPQ4,IVF8,PQ4x4fs"])
def test_a_mapped_index_finds_the_same(factory: str, tmp_path: Path) -> None:
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(600), [600])
    build_file(embeddings, Index(factory=factory, nprobe=3), tmp_path / "i")
    queries = draw_vectors(20, seed=1)
    results = [search_index(open_index(tmp_path / "i", 600, WIDTH, mapped=mapped), queries, 30) for mapped in (False, True)]
    assert all(read.tobytes() == mapped.tobytes() for read, mapped in zip(*results, strict=True))
    content = (tmp_path / "i").read_bytes()
    for cut in (1, len(content) // 2, len(content) - 8):  # faiss misses fewer bytes of the last row number
        (tmp_path / "i").write_bytes(content[:cut])
        with pytest.raises(UserError, match="i: unreadable faiss index"):
            open_index(tmp_path / "i", mapped=True)


def test_an_index_of_distances_is_refused(tmp_path: Path) -> None:
    """Older versions made them of HNSW32,PQ16; the least distance would be the last of a list."""
    index = faiss.IndexHNSWFlat(WIDTH, 4)
    index.add(draw_vectors(10))
    faiss.write_index(index, str(tmp_path / "l2"))
    with pytest.raises(UserError, match=r"l2: found an index of distances, expected one of inner products; run index again$"):
        open_index(tmp_path / "l2", 10, WIDTH)


def test_an_index_larger_than_memory_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss allocates whatever a corrupt length says."""

    def run_out_of_memory(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(faiss, "read_index", run_out_of_memory)
    with pytest.raises(UserError, match=r"i: unreadable faiss index, corrupt or larger than the free memory"):
        open_index(tmp_path / "i")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_flat_index_is_the_file_that_faiss_writes(dtype: Any, tmp_path: Path) -> None:
    """It is written shard by shard, and searched in its file."""
    vectors = draw_vectors(300).astype(dtype)
    embeddings = write_embeddings(tmp_path / "e", vectors, [100, 0, 200])
    theirs = build(embeddings, Index())
    faiss.write_index(theirs, str(tmp_path / "theirs"))
    build_file(embeddings, Index(), tmp_path / "ours")
    ours = open_index(tmp_path / "ours", 300, WIDTH)
    if (maps := Path("/proc/self/maps")).exists():
        assert str(tmp_path / "ours") in maps.read_text(), "not read into memory"
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for actual, expected in zip(search_index(ours, draw_vectors(7, 1), 20), search_index(theirs, draw_vectors(7, 1), 20), strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(ours.reconstruct_batch(np.arange(300)), vectors)
    content = (tmp_path / "ours").read_bytes()
    for size in (10, 40, 50, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(UserError, match="cut: unreadable faiss index"):
            open_index(tmp_path / "cut")


def test_vectors_of_another_width(tmp_path: Path) -> None:
    index = build(write_embeddings(tmp_path / "e", draw_vectors(10), [10]), Index())
    with pytest.raises(UserError, match="width 16, the encoder 8"):
        search_index(index, draw_vectors(2, width=8), 3)


def write_queries(folder: Path, rows: list[list[int]]) -> None:
    folder.mkdir()
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.arange(len(rows), dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([[f"q{n}" for n in range(len(rows))]], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


@pytest.mark.parametrize(
    ("count", "factory", "recall_at", "key"), [(12, "PQ4x4", 10, "recall@10"), (1, "Flat", 10**6, "recall@300"), (0, "Flat", 10, "")]
)
def test_the_stage_writes_the_index_and_its_figures(
    count: int, factory: str, recall_at: int, key: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = draw_vectors(300, width=128)
    write_embeddings(tmp_path / "e", vectors, [100, 200])
    rows = np.random.default_rng(5).integers(1000, 30000, size=(count, 6)).tolist()
    write_queries(tmp_path / "q", rows)
    (tmp_path / "params.yaml").write_text(f"index: {{factory: '{factory}', recall_at: {recall_at}}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", f"index --embeddings e --encoder {tiny_encoder} --queries q --out out/i --metrics m/i.json".split())
    stage = import_module("tasks.index.__main__")
    monkeypatch.setattr(stage, "SAMPLE", 7)
    stage.main()
    figures = json.loads((tmp_path / "m" / "i.json").read_text())
    size = (tmp_path / "out" / "i" / "index.faiss").stat().st_size
    assert {name: figures.pop(name) for name in ("factory", "rows", "width", "bytes", "bytes_per_vector")} == {
        "factory": factory,
        "rows": 300,
        "width": 128,
        "bytes": size,
        "bytes_per_vector": round(size / 300, 1),
    }
    if factory == "Flat":
        assert 512 <= size / 300 < 520  # 128 float32 a vector
    assert list(figures) == ([key] if key else [])
    if count:
        tower = load_towers(tiny_encoder).query
        with torch.no_grad():
            queries = tower(torch.tensor(rows[:7]), torch.ones(len(rows[:7]), 6, dtype=torch.int64)).numpy()
        k = min(recall_at, 300)
        hits = faiss.read_index(str(tmp_path / "out" / "i" / "index.faiss")).search(queries, k)[1]
        assert figures[key] == pytest.approx(reference_recall(hits, queries, vectors, k), abs=1e-6)


def test_a_warning_of_faiss_is_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It gives one for each of the four parts of every vector."""
    build(write_embeddings(tmp_path / "e", draw_vectors(300), [300]), Index(factory="PQ4"))
    warnings = [line for line in capfd.readouterr().err.splitlines() if "WARNING clustering" in line]
    assert warnings == ["faiss: WARNING clustering 300 points to 256 centroids: please provide at least 9984 training points"]


def test_latencies_are_of_every_query_alone_and_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = import_module("tasks.index.__main__")
    batch_sizes: list[int] = []
    seconds = iter(range(10_000))
    monkeypatch.setattr(stage, "search_index", lambda _index, queries, _k: batch_sizes.append(len(queries)))
    monkeypatch.setattr(stage.time, "perf_counter", lambda: float(next(seconds)))
    figures = stage.latencies(None, np.zeros((5, 4), dtype=np.float32), 3)
    assert batch_sizes == [1, 1, 1, 1, 1, 5]
    assert figures == {"search_p50_ms": 1000.0, "search_p99_ms": 1000.0, "search_batched_ms": 200.0}
