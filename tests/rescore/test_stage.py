"""A rescored run is the best of the run, ordered by the vectors' own products; a document counts by its best passage."""

import json
import sys
import tracemalloc
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.files import write_json
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.embeddings import Manifest, write_manifest
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table

OWNERS = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5]


def write_tokens(folder: Path, name: str, rows: list[list[int]], owners: list[int]) -> None:
    folder.mkdir(parents=True)
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.array(owners, dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([[f"{name}{n}" for n in range(max(owners) + 1)]], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


@pytest.mark.parametrize("block", [1, 1024])
def test_the_best_of_a_run_is_reordered_by_vector_products(
    block: int, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = import_module("tasks.rescore.__main__")
    monkeypatch.setattr(entry, "BLOCK", block)
    draw = np.random.default_rng(0)
    tokens = draw.integers(1000, 30000, size=(3, 5)).tolist()
    vectors = draw.normal(size=(len(OWNERS), 128)).astype(np.float32)
    write_tokens(tmp_path / "documents", "d", [[1]] * len(OWNERS), OWNERS)
    write_tokens(tmp_path / "queries" / "test", "q", tokens, [0, 1, 2])
    (tmp_path / "vectors").mkdir()
    for number, part in enumerate(np.split(vectors, [4, 5])):  # document 2 is in three shards
        np.save(tmp_path / "vectors" / f"{number:05}.npy", part)
    write_manifest(tmp_path / "vectors", Manifest(10, 128, "float32", [4, 1, 5], "", "", 8, ""), tmp_path / "documents")
    lists = {"q2": ["d5", "d0", "d2", "d3"], "q0": ["d1", "d2"]}
    (tmp_path / "run").mkdir()
    lines = [f"{q} Q0 {doc} {rank} 0 x" for q, docs in lists.items() for rank, doc in enumerate(docs, 1)]
    (tmp_path / "run" / "test.trec").write_text("\n".join(lines) + "\n")
    (tmp_path / "params.yaml").write_text("rescore: {m: {run: bm25, round: star, encoder: star, depth: 3, precision: fp32}}\n")
    freeze_parameters(tmp_path)
    (tmp_path / "runtime.yaml").write_text("device: cpu\n")
    monkeypatch.chdir(tmp_path)
    arguments = f"--name m --run run --encoder {tiny_encoder} --embeddings vectors --queries queries --out out --latency latency.json"
    monkeypatch.setattr(sys, "argv", ["rescore", *arguments.split()])
    entry.main()

    tower = load_towers(tiny_encoder).query
    expected = []
    for query, docs in lists.items():
        with torch.no_grad():
            vector = tower(torch.tensor([tokens[int(query[1])]]), torch.ones(1, 5, dtype=torch.int64))[0].numpy()
        best = {doc: max(float(vector @ vectors[row]) for row, owner in enumerate(OWNERS) if owner == int(doc[1])) for doc in docs[:3]}
        order = sorted(best.items(), key=lambda pair: -pair[1])
        expected += [(query, "Q0", doc, rank, pytest.approx(score, abs=1e-3), "m") for rank, (doc, score) in enumerate(order, 1)]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["test.trec"], "a split without a run gets none"
    run_lines = [line.split() for line in (tmp_path / "out" / "test.trec").read_text().splitlines()]
    assert [(query, q0, doc, int(rank), float(score), tag) for query, q0, doc, rank, score, tag in run_lines] == expected
    assert json.loads((tmp_path / "latency.json").read_text())["test"]["milliseconds a query"] > 0


def test_a_long_run_is_not_held_as_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string, a float, and their tuple per pair took 350 bytes; Arrow columns take a tenth, outside Python."""
    entry = import_module("tasks.rescore.__main__")
    queries, depth = 300, 200
    with (tmp_path / "test.trec").open("w") as handle:
        for query in range(queries):
            handle.writelines(f"query{query} Q0 document{(query * 31 + n) % 5000} {n + 1} 0 x\n" for n in range(depth))
    for folder, name, count in (("tokens", "query", queries), ("vectors", "document", 5000)):
        write_table(tmp_path / folder / "ids.parquet", IDS, [pa.table([[f"{name}{n}" for n in range(count)]], schema=IDS)])
    monkeypatch.setattr(entry, "BLOCK", 10)
    monkeypatch.setattr(entry, "open_tokens", lambda _: None)
    monkeypatch.setattr(entry, "encode_queries", lambda *_, **__: np.empty(0))
    monkeypatch.setattr(entry, "embedded_scores", lambda *arguments: (arguments[2] * 7 + arguments[3] * 11 % 101).astype(np.float32))
    embeddings, params = SimpleNamespace(folder=tmp_path / "vectors"), SimpleNamespace(depth=depth, precision="fp32")
    tracemalloc.start()
    batches, _ = entry.rescore_run(tmp_path / "test.trec", tmp_path, None, embeddings, tmp_path / "tokens", params, torch.device("cpu"))
    rows = sum(len(batch) for batch in batches)
    _, bytes_at_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == queries * depth
    assert bytes_at_peak < 100 * rows, f"{bytes_at_peak / rows:.0f} bytes a pair"
