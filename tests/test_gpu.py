"""What a GPU computes beside what the CPU does: skipped where there is none. Each stage runs in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no GPU")]
STAGES = ["train@warmup", "encode@warmup", "index@warmup", "mine@warmup", "adore@tower", "reranker@small", "teacher@ce", "pretrain@costa"]


def run_on_gpu(command: list[str], folder: Path) -> str:
    """The output of a process that sees the GPU, which tests hide from this one."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def run_stage(small: Any, stage: str, out: str, runtime: str = "") -> None:
    """A stage on the GPU, its outs below `out`."""
    small.write("runtime.yaml", f"device: cuda\n{runtime}")
    run_on_gpu([*small.commands[stage][1:], *small.elsewhere(stage, out)], small.folder)


def vectors(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(shard) for shard in sorted(folder.glob("[0-9]*.npy"))])


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_gives_the_same_bits_twice(small: Any, stage: str) -> None:
    for out in ("once", "twice"):
        run_stage(small, stage, out)
    assert_same_bits(small.folder, "once", "twice")


def assert_same_bits(folder: Path, once: str, twice: str) -> None:
    files = [file for file in (folder / once).rglob("*") if file.suffix in (".safetensors", ".npy", ".parquet", ".faiss")]
    assert files
    for file in files:
        assert file.read_bytes() == (folder / twice / file.relative_to(folder / once)).read_bytes(), file


@pytest.mark.parametrize("stage", ["train@warmup", "pretrain@costa"])
def test_texts_that_are_encoded_twice_have_the_same_dropout(small: Any, stage: str) -> None:
    run_stage(small, stage, "once")
    run_stage(small, stage, "twice", "graph_tokens: 0\n")
    assert_same_bits(small.folder, "once", "twice")


def test_vectors_and_lists_are_those_of_the_cpu(small: Any) -> None:
    run_stage(small, "encode@warmup", "gpu")
    ours, theirs = vectors(small.folder / "gpu/data/embeddings/warmup"), vectors(small.folder / "data/embeddings/warmup")
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() > 0.995, "bf16 beside fp32, or bf16 of another kind"
    run_stage(small, "mine@warmup", "gpu")
    lists = [pq.read_table(small.folder / path / "data/negatives/warmup/train.parquet").to_pylist() for path in ("gpu", ".")]
    pairs = [{(row["query"], row["doc"]) for row in rows if row["rank"] <= 10} for rows in lists]
    assert len(pairs[0] & pairs[1]) > 0.9 * len(pairs[1])


def test_indexes_of_a_gpu_find_what_those_of_a_cpu_find(tmp_path: Path) -> None:
    report = json.loads(run_on_gpu(["-m", "tests.gpu_indexes", str(tmp_path)], ROOT).splitlines()[-1])
    if not report:
        pytest.skip("the installed faiss does not support GPUs")
    for factory, result in report.items():
        if factory != "IVF64_HNSW16,SQ8":  # which of both depends on the version of faiss
            assert result["on_gpu"] == (factory not in ("PQ16", "HNSW16", "OPQ6_60,IVF64,PQ6")), factory
        assert not result["kind"].startswith("Gpu"), factory
        assert result["same_rows"] > (0.98 if "PQ" in factory else 0.999), (factory, result)
        assert result["score_error"] < (2e-3 if "PQ64" in factory else 1e-5), (factory, result)
        assert result["recall"] > result["recall_of_cpu"] - 0.02, (factory, result)
