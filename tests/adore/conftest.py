"""A small project for the stage: random documents, the vectors of a real encoder, and an entry of `adore` for each kind of training."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.adore import work
from tasks.core.encoding.encode import encode
from tasks.core.files import write_json
from tasks.core.models.bi_encoder import load_towers, save_towers
from tasks.core.models.folder import Shape
from tasks.core.retrieval.embeddings import Embeddings, Manifest, write_manifest
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.companions import KNOWN

QUERIES, DOCUMENTS, DEPTH, STEPS = 24, 170, 12, 9
CPU = torch.device("cpu")
OUTS = ("encoder", "index", "curves", "state")
COMMON = f"round: r, steps: {STEPS}, batch_queries: 8, depth: {DEPTH}, lr: 1e-3, precision: fp32"
ENTRIES = {
    "dynamic": "negatives: none",
    "ndcg": "negatives: none, metric: ndcg, cut: 5, missing: jpq",
    "ltre": "negatives: none, loss: ranknet, missing: ltre",
    "replayed": "negatives: none, replay: 0.5",
    "refreshed": "negatives: none, lists: refreshed, refresh: 4, loss: ranknet",
    "random": "negatives: none, lists: random, loss: ranknet",
    "given": "negatives: g, lists: given, loss: ranknet",
    "ivf": 'negatives: none, index: "IVF8,Flat", nprobe: 2',
    "short": 'negatives: none, index: "IVF50,Flat", nprobe: 1, steps: 2',
    "exact": "negatives: none, index: PQ2",
    "decoded": "negatives: none, index: PQ2, scores: decoded",
    "jpq": 'negatives: none, index: "IVF1,PQ2x8", centroids: true, centroid_lr: 1e-2, missing: jpq',
    "again": 'negatives: none, index: "IVF1,PQ2x8", centroids: true, steps: 0, quantizer: given',
    "further": 'negatives: none, index: "IVF1,PQ2x8", centroids: true, quantizer: given, steps: 2',
    "frozen": 'negatives: none, index: "IVF1,PQ2x8", quantizer: given, steps: 2',
    "untrained": "negatives: none, index: PQ2, steps: 0",
    "mismatch": "negatives: none, index: PQ2, steps: 0, quantizer: given",
    "jpq_flat": "negatives: none, centroids: true",
    "jpq_sq": "negatives: none, index: SQ8, centroids: true",
    "unknown": "negatives: none, index: Falt",
    "greedy": 'negatives: none, index: "IVF500,Flat"',
    "deep": "negatives: none, depth: 1000, steps: 1",
}
STUDY = f'{{{COMMON}, factories: [Flat, "PQ2"], serve_depth: 20, measures: [RR@10, R@20]}}'
INDEXES: dict[str, Any] = {}  # without documents: 256 centroids take a while to find


def write_tokens(folder: Path, name: str, rows: list[list[int]], owners: list[int]) -> None:
    folder.mkdir(parents=True)
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.array(owners, dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([[f"{name}{n:03}" for n in range(max(owners) + 1)]], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


@pytest.fixture(scope="module")
def project(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random documents of one to three passages with the vectors of a real encoder; every query of train has one to three positives.

    On dev, where grade 2 is relevant, half of the queries have no relevant document.
    """
    folder = tmp_path_factory.mktemp("adore")
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    draw = np.random.default_rng(3)
    owners = np.repeat(np.arange(DOCUMENTS), draw.integers(1, 4, size=DOCUMENTS)).tolist()
    rows = draw.integers(1000, 30000, size=(len(owners), 6)).tolist()
    write_tokens(folder / "tokens" / "documents", "d", rows, owners)
    (folder / "r").mkdir()
    save_towers(load_towers(tiny_encoder, Shape("mean", "none", "cosine")), load_tokenizer(tiny_encoder), folder / "r", max_length=8)
    judged = []
    for split in ("train", "dev"):
        query_rows = []
        for query in range(QUERIES):
            relevant = draw.choice(DOCUMENTS, size=1 + query % 3, replace=False)
            grade = 1 if split == "train" else (2, 1, 2, 0)[query % 4]
            judged += [(split, f"q{query:03}", f"d{d:03}", grade) for d in relevant]
            query_rows.append([*rows[owners.index(int(relevant[0]))][:3], *draw.integers(1000, 30000, size=2).tolist()])
        write_tokens(folder / "tokens" / "queries" / split, "q", query_rows, list(range(QUERIES)))
        columns = [list(column) for column in zip(*[row[1:] for row in judged if row[0] == split], strict=True)]
        write_table(folder / "corpus" / "qrels" / f"{split}.parquet", QRELS, [pa.table(columns, schema=QRELS)])
    negatives = [(f"q{q:03}", f"d{d:03}", rank, 0.5) for q in range(QUERIES) for rank, d in enumerate(draw.integers(DOCUMENTS, size=15), 1)]
    table = pa.table([list(column) for column in zip(*negatives, strict=True)], schema=RANKED)
    write_table(folder / "g" / "train.parquet", RANKED, [table])
    tokens = open_tokens(folder / "tokens" / "documents")
    vectors = encode(load_towers(folder / "r").document, tokens, np.arange(len(tokens)), 4096, CPU)
    (folder / "embeddings").mkdir()
    for number, part in enumerate(np.split(vectors, [100])):
        np.save(folder / "embeddings" / f"{number:05}.npy", part)
    manifest = Manifest(len(vectors), 128, "float32", [100, len(vectors) - 100], "", "", 8, "")
    write_manifest(folder / "embeddings", manifest, tokens.folder)
    entries = "\n".join(f"  {name}: {{{', '.join([entry, *_missing_defaults(entry)])}}}" for name, entry in ENTRIES.items())
    (folder / "params.yaml").write_text(f"adore:\n{entries}\nstudy: {{s: {STUDY}}}\nevaluate: {{relevance: {{dev: 2}}}}\n")
    write_json(folder / "state" / KNOWN, [f"q{query:03}" for query in range(4, 20)])
    (folder / "runtime.yaml").write_text("device: cpu\nthreads: 1\ncheckpoint_seconds: 0\n")
    return folder


def _missing_defaults(entry: str) -> list[str]:
    """What every entry has, unless it sets its own."""
    return [part for part in COMMON.split(", ") if f"{part.split(':')[0]}:" not in entry.replace("centroid_lr", "")]


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Run an entry into a folder below the project."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    monkeypatch.chdir(project)
    real = work.trained_empty

    def train_once(embeddings: Embeddings, recipe: Any, key: str) -> Any:
        if recipe.factory not in INDEXES:
            INDEXES[recipe.factory] = real(embeddings, recipe, key)
        return faiss.deserialize_index(faiss.serialize_index(INDEXES[recipe.factory]))

    monkeypatch.setattr(work, "trained_empty", train_once)

    def go(name: str, out: str, **places: str) -> Path:
        outs = [part for kind in OUTS for part in (f"--{kind}", f"{out}/{kind}")]
        options = ["--name", name, "--negatives", "g", *outs] if name in ENTRIES else ["--study", name, "--out", out]
        known = {"round": "r", "round_state": "state", "embeddings": "embeddings", "tokens": "tokens", "corpus": "corpus"}
        paths = [part for kind, place in (known | places).items() for part in (f"--{kind.replace('_', '-')}", place)]
        monkeypatch.setattr(sys, "argv", ["adore", *paths, *options])
        import_module("tasks.adore.__main__").main()
        return project / out

    return go
