"""A rescored run is the run's best in the order of the vectors' own products, a document by its best passage."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.embeddings import Manifest, write_manifest
from tasks.core.encoder import load_towers
from tasks.core.files import write_json
from tasks.core.records import RANKED
from tasks.core.tables import read_table, write_table
from tasks.core.tokens import IDS

OWNERS = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5]


def write_tokens(folder: Path, name: str, rows: list[list[int]], owners: list[int]) -> None:
    folder.mkdir(parents=True)
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.array(owners, dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([[f"{name}{n}" for n in range(max(owners) + 1)]], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


def test_the_best_of_a_run_in_a_new_order(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(1000, 30000, size=(3, 5)).tolist()
    vectors = draw.normal(size=(len(OWNERS), 128)).astype(np.float32)
    write_tokens(tmp_path / "documents", "d", [[1]] * len(OWNERS), OWNERS)
    write_tokens(tmp_path / "queries" / "test", "q", tokens, [0, 1, 2])
    (tmp_path / "vectors").mkdir()
    for number, part in enumerate(np.split(vectors, [4, 5])):  # document 2 lies in three shards
        np.save(tmp_path / "vectors" / f"{number:05}.npy", part)
    write_manifest(tmp_path / "vectors", Manifest(10, 128, "float32", [4, 1, 5], "", "", 8, ""), tmp_path / "documents")
    lists = {"q2": ["d5", "d0", "d2", "d3"], "q0": ["d1", "d2"]}
    (tmp_path / "run").mkdir()
    lines = [f"{q} Q0 {doc} {rank} 0 x" for q, docs in lists.items() for rank, doc in enumerate(docs, 1)]
    (tmp_path / "run" / "test.trec").write_text("\n".join(lines) + "\n")
    (tmp_path / "params.yaml").write_text("rescore: {m: {run: bm25, round: star, encoder: star, depth: 3, precision: fp32}}\n")
    (tmp_path / "runtime.yaml").write_text("device: cpu\n")
    monkeypatch.chdir(tmp_path)
    arguments = f"--name m --run run --encoder {tiny_encoder} --embeddings vectors --queries queries --out out --latency latency.json"
    monkeypatch.setattr(sys, "argv", ["rescore", *arguments.split()])
    import_module("tasks.rescore.__main__").main()

    tower = load_towers(tiny_encoder).query
    wanted = []
    for query, docs in lists.items():
        with torch.no_grad():
            vector = tower(torch.tensor([tokens[int(query[1])]]), torch.ones(1, 5, dtype=torch.int64))[0].numpy()
        best = {doc: max(float(vector @ vectors[row]) for row, owner in enumerate(OWNERS) if owner == int(doc[1])) for doc in docs[:3]}
        order = sorted(best.items(), key=lambda pair: -pair[1])
        wanted += [(query, doc, rank, pytest.approx(score, abs=1e-3)) for rank, (doc, score) in enumerate(order, 1)]
    assert [tuple(row.values()) for row in read_table(tmp_path / "out" / "test.parquet", RANKED).to_pylist()] == wanted
    assert json.loads((tmp_path / "latency.json").read_text())["test"]["milliseconds a query"] > 0
