"""A round on two ranks is the round on one, to fp32 rounding, and a lost rank costs nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.files import folder_digest

OUTS = ("encoder", "state", "curves")
ROOT = Path(__file__).resolve().parents[2]
PARAMS = """
text: {titles: false}
tokenize: {query_length: 16, document_length: 32}
bm25: {depth: 20}
base: {}
rounds:
  plain: {init: base, negatives: bm25, steps: 20, batch_queries: 20, hard_negatives: 2, lr: 1e-4, batch_tokens: 512, precision: fp32}
  wild: {init: base, negatives: bm25, steps: 20, batch_queries: 20, hard_negatives: 2, lr: 1e30, batch_tokens: 512, precision: fp32}
  watched: {init: base, negatives: bm25, steps: 6, batch_queries: 20, hard_negatives: 2, lr: 1e-4, batch_tokens: 512, precision: fp32,
            validate_every: 2, validation_queries: 8, keep: last, projector: linear, guide: init}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tiny_encoder: Path, run_stage: Any) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(f"encoder: {{source: '{tiny_encoder}'}}\n{PARAMS}")
    shutil.copytree(tiny_corpus.records, folder / "corpus")
    run_stage(folder, "base", "--encoder", "base", "--state", "base_state", "--tokenizer", "tokenizer")
    run_stage(folder, "tokenize", "--corpus", "corpus", "--tokenizer", "tokenizer", "--out", "tokens")
    run_stage(folder, "bm25", "--corpus", "corpus", "--index", "bm25", "--candidates", "candidates", "--negatives", "negatives")
    return folder


def write_runtime(folder: Path, workers: int, seconds: int = 0) -> None:
    """One thread for each worker; a checkpoint after each step unless told otherwise."""
    (folder / "runtime.yaml").write_text(f"device: cpu\nthreads: {workers}\nworkers: {workers}\ncheckpoint_seconds: {seconds}\n")


def command(name: str, out: str) -> list[str]:
    outs = [part for kind in OUTS for part in (f"--{kind}", f"{out}/{kind}")]
    inputs = ["--name", name, "--init", "base", "--negatives", "negatives", "--tokens", "tokens", "--corpus", "corpus"]
    return [sys.executable, "-m", "tasks.train", *inputs, *outs]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def train(project: Path, name: str, out: str, workers: int) -> str:
    shutil.rmtree(project / ".retemper/scratch", ignore_errors=True)
    write_runtime(project, workers, 30)
    result = subprocess.run(command(name, out), cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids of a stage's ranks, by rank: its children in the order they started, except the resource tracker."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    pids = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    return dict(enumerate(sorted(pids)))


def wait_for_checkpoint(process: subprocess.Popen[str], project: Path) -> None:
    deadline = time.monotonic() + 300
    while not list(project.glob(".retemper/scratch/*/*/checkpoint.safetensors")):
        assert process.poll() is None, "the training ended before a rank could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["plain", "watched"])
def test_two_workers_train_as_one(project: Path, name: str) -> None:
    output_1, output_2 = train(project, name, f"one/{name}", 1), train(project, name, f"two/{name}", 2)
    lines = [line for line in output_1.splitlines() if "steps," not in line]
    assert [line for line in output_2.splitlines() if "steps," not in line] == lines, "one rank speaks"
    weights_1, weights_2 = (load_file(project / f"{kind}/{name}/encoder/model.safetensors") for kind in ("one", "two"))
    difference = sum(float((weights_2[key] - weight).double().square().sum()) for key, weight in weights_1.items()) ** 0.5
    assert difference <= 1e-5 * sum(float(weight.double().square().sum()) for weight in weights_1.values()) ** 0.5
    assert any(not torch.equal(weights_2[key], weight) for key, weight in weights_1.items()), "or no second rank took part"
    losses = [(project / f"{kind}/{name}/curves/plots/metrics/train/loss.tsv").read_text().splitlines() for kind in ("one", "two")]
    assert losses[0][:2] == losses[1][:2], "the first loss is that of the same vectors"
    assert len(losses[0]) == len(losses[1])
    assert folder_digest(project / f"two/{name}/state") != folder_digest(project / f"one/{name}/state")
    train(project, name, f"again/{name}", 2)
    for out in OUTS:
        assert folder_digest(project / f"again/{name}/{out}") == folder_digest(project / f"two/{name}/{out}"), "the same bits each time"


@pytest.mark.heavy
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_costs_only_time(project: Path, killed: int) -> None:
    train(project, "plain", "whole", 2)
    shutil.rmtree(project / ".retemper/scratch")
    write_runtime(project, 2)
    with subprocess.Popen(command("plain", "lost"), cwd=project, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_for_checkpoint(process, project)
        os.kill(ranks_of(process)[killed], signal.SIGKILL)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "train plain: worker" in errors and "all 2 start again (restart 1 of 3 allowed)" in errors
    for out in OUTS:
        assert folder_digest(project / "lost" / out) == folder_digest(project / "whole" / out), out


@pytest.mark.heavy
def test_ranks_end_with_their_stage_and_a_later_run_resumes(project: Path) -> None:
    train(project, "plain", "whole", 2)
    shutil.rmtree(project / ".retemper/scratch")
    write_runtime(project, 2)
    process = subprocess.Popen(command("plain", "killed"), cwd=project, env=environment(), text=True)
    wait_for_checkpoint(process, project)
    ranks = ranks_of(process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{rank}").exists() for rank in ranks.values()):
        assert time.monotonic() < deadline, "a rank outlives its stage"
        time.sleep(0.05)
    assert not any((project / "killed" / out).exists() for out in OUTS)
    write_runtime(project, 3)  # another number of workers takes another scratch folder
    result = subprocess.run(command("plain", "three"), cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "resuming" not in result.stdout, result.stderr
    write_runtime(project, 2)
    result = subprocess.run(command("plain", "killed"), cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "resuming from step" in result.stdout, result.stderr
    for out in OUTS:
        assert folder_digest(project / "killed" / out) == folder_digest(project / "whole" / out), out


@pytest.mark.heavy
def test_a_user_error_in_ranks_is_the_line_that_one_worker_gives(project: Path) -> None:
    lines = {}
    for workers in (1, 2):
        write_runtime(project, workers)
        result = subprocess.run(command("wild", "wild"), cwd=project, env=environment(), capture_output=True, text=True, check=False)
        assert result.returncode == 2, result.stderr
        lines[workers] = [line for line in result.stderr.splitlines() if line.startswith("retemper: ")]
        assert not any((project / "wild" / out).exists() for out in OUTS)
        assert "Traceback" not in result.stderr
    (line_1,), (line_2,) = lines[1], lines[2]
    assert line_1.split("; the last")[0].split("gradient norm")[0] == line_2.split("; the last")[0].split("gradient norm")[0]
    assert "expected finite values; decrease lr or increase temperature: training then starts again" in line_2
