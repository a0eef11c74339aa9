"""Every training stage on two workers: the result of one, to rounding, and the same bits each time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tasks.core.stage.entry import RECORD
from tests.core.workers.test_cluster import start

ROOT = Path(__file__).resolve().parents[3]
ADORE = {"round": "warmup", "negatives": "none", "steps": 4, "batch_queries": 40, "batch_tokens": 512, "precision": "fp32"}
CHANGED = {
    "pretrain.costa": {"init": "base", "steps": 3, "batch_texts": 32, "batch_tokens": 512, "precision": "fp32"},
    "rerankers.small": {
        "source": "package:cognition/model",
        "head": "new",
        "negatives": "mixed",
        "steps": 3,
        "batch_queries": 8,
        "max_length": 32,
        "batch_tokens": 512,
        "precision": "fp32",
    },
    "adore.tower": ADORE,
}
ADORES = {
    "refreshed": {"lists": "refreshed", "refresh": 2, "loss": "ranknet"},
    "compressed": {"index": "PQ4x4"},
}


def run(small: Any, stage: str, out: str, workers: int, settings: str = "") -> None:
    small.write("runtime.yaml", f"device: cpu\nthreads: 1\nworkers: {workers}\n{settings}")
    command = [sys.executable, *small.commands[stage][1:], *small.elsewhere(stage, out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), RECORD: f"{out}.json"}
    process = subprocess.run(command, cwd=small.folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def weights(folder: Path) -> dict[str, Any]:
    return {
        f"{file.relative_to(folder)} {name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
        if tensor.is_floating_point()
    }


@pytest.mark.heavy
@pytest.mark.parametrize("stage", ["train@warmup", "pretrain@costa", "reranker@small", "adore@tower", *ADORES])
def test_two_workers_train_as_one(small: Any, stage: str) -> None:
    for key, value in CHANGED.items():
        small.set(key, value)
    small.set("rounds.warmup.batch_tokens", 512)
    if stage in ADORES:
        small.set("adore.tower", ADORE | ADORES[stage])
        stage = "adore@tower"
    for folder, workers in (("one", 1), ("two", 2), ("again", 2)):
        run(small, stage, folder, workers)
    one, two, again = (weights(small.folder / folder) for folder in ("one", "two", "again"))
    assert one.keys() == two.keys() == again.keys() and one
    assert all((again[name] == tensor).all() for name, tensor in two.items()), "the same bits each time"
    assert json.loads(small.read("two.json"))["workers"] == 2  # bits need not differ: a sum of two chunks has the same in any order
    for name, tensor in one.items():
        if "model.safetensors" in name:
            assert float((two[name] - tensor).abs().max()) <= 1e-4, name
    distance = (sum(float((two[n] - t).double().square().sum()) for n, t in one.items() if "model.safetensors" in n)) ** 0.5
    assert distance <= 1e-5 * sum(float(t.double().square().sum()) for n, t in one.items() if "model.safetensors" in n) ** 0.5
    curves = [sorted((small.folder / folder).rglob("loss.tsv"))[0].read_text().splitlines() for folder in ("one", "two")]
    first = [float(lines[1].split("\t")[-1]) for lines in curves]
    assert first[1] == pytest.approx(first[0], rel=1e-6)


@pytest.mark.heavy
def test_two_workers_of_a_cluster_train_as_two_of_this_machine(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_cluster, _ = start(monkeypatch, 2)
    try:
        for key, value in CHANGED.items():
            small.set(key, value)
        small.set("rounds.warmup.batch_tokens", 512)
        for stage in ("train@warmup", "pretrain@costa", "reranker@small", "adore@tower", "compressed"):
            if stage in ADORES:
                small.set("adore.tower", ADORE | ADORES[stage])  # the index is built by the stage, not by a rank
                stage = "adore@tower"
            run(small, stage, "here", 2)
            shutil.rmtree(small.folder / ".retemper/scratch")  # else what the first has left would serve the second
            run(small, stage, "there", 2, f"engine: ray\naddress: {ray_cluster.address}\n")
            local, remote = (weights(small.folder / folder) for folder in ("here", "there"))
            assert local.keys() == remote.keys() and local, stage
            assert all((remote[name] == tensor).all() for name, tensor in local.items()), stage
    finally:
        ray_cluster.shutdown()
