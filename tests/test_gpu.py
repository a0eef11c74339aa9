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

# Not where PyTorch has a CPU build, or the driver is too old for it.
HAS_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"
BF16 = [f"{entry}.precision" for entry in ("rounds.warmup", "rounds.taught", "adore.tower", "study.indexes")]  # the default
STAGES = ["train@warmup", "encode@warmup", "index@warmup", "mine@warmup", "adore@tower", "reranker@small", "teacher@ce", "pretrain@costa"]


def call(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process that sees the GPU, which tests hide from this one."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session", autouse=True)
def _needs_gpu() -> None:
    if shutil.which("nvidia-smi") is None or call(["-c", HAS_GPU], ROOT).returncode:
        pytest.skip("no GPU that the installed PyTorch can use")


def run_on_gpu(command: list[str], folder: Path) -> str:
    """The output of a process on the GPU."""
    process = call(command, folder)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def small(small: Any) -> Any:
    """A small project whose trainings have the default precision: without padding, on a GPU."""
    for key in BF16:
        small.set(key, "bf16")
    return small


def run_stage(small: Any, stage: str, out: str, *arguments: str, runtime: str = "") -> None:
    """A stage on the GPU, its outs below `out`."""
    small.write("runtime.yaml", f"device: cuda\n{runtime}")
    run_on_gpu([*small.commands[stage][1:], *small.elsewhere(stage, out), *arguments], small.folder)


def vectors(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(shard) for shard in sorted(folder.glob("[0-9]*.npy"))])


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_gives_the_same_bits_twice(small: Any, stage: str) -> None:
    for out in ("once", "twice"):
        run_stage(small, stage, out)
    assert_same_bits(small.folder, "once", "twice")


def test_a_training_of_first_tokens_gives_the_same_bits_twice(small: Any) -> None:
    """Its last layer computes one query of attention for each text."""
    small.set("base.pooling", "cls")
    assert small.stage("base").status == 0
    for stage in ("train@warmup", "encode@warmup"):
        for out in ("once", "twice"):
            run_stage(small, stage, f"{stage}/{out}")
        assert_same_bits(small.folder / stage, "once", "twice")


def test_an_index_is_built_on_the_gpu_with_the_same_bits_twice(small: Any) -> None:
    if not json.loads(run_on_gpu(["-c", "import faiss, json; print(json.dumps(hasattr(faiss, 'StandardGpuResources')))"], ROOT)):
        pytest.skip("the installed faiss does not support GPUs")
    small.set("index.build", "gpu")
    small.set("index.factory", "IVF4,Flat")
    for out in ("once", "twice"):
        run_stage(small, "index@warmup", out)
    assert_same_bits(small.folder, "once", "twice")


def assert_same_bits(folder: Path, once: str, twice: str) -> None:
    files = [file for file in (folder / once).rglob("*") if file.suffix in (".safetensors", ".npy", ".parquet", ".faiss")]
    assert files
    for file in files:
        assert file.read_bytes() == (folder / twice / file.relative_to(folder / once)).read_bytes(), file


@pytest.mark.parametrize("stage", ["train@warmup", "pretrain@costa"])
def test_texts_that_are_encoded_twice_have_the_same_dropout(small: Any, stage: str) -> None:
    run_stage(small, stage, "once")
    run_stage(small, stage, "twice", runtime="graph_tokens: 0\n")
    assert_same_bits(small.folder, "once", "twice")


def test_vectors_and_lists_are_those_of_the_cpu(small: Any) -> None:
    run_stage(small, "encode@warmup", "gpu")
    ours, theirs = vectors(small.folder / "gpu/data/embeddings/warmup"), vectors(small.folder / "data/embeddings/warmup")
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() > 0.995, "bf16 beside fp32, or bf16 of another kind"
    run_stage(small, "mine@warmup", "gpu")
    same_lists(small)


def test_exact_lists_are_those_of_the_cpu(small: Any) -> None:
    small.set("mine.warmup.search", "embeddings")
    run_stage(small, "mine@warmup", "gpu", "--vectors", "data/embeddings/warmup")
    same_lists(small)


def same_lists(small: Any) -> None:
    """The first ten of each list, on the GPU and on the CPU."""
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
