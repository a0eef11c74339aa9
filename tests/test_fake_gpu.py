"""Every stage that uses a GPU, on a stand-in for one: no tensor is on the wrong device, and the program seldom waits for it."""

from typing import Any

import numpy as np
import pytest
import torch

from tasks.core.stage.progress import Progress
from tasks.rerank import __main__ as rerank
from tests.fake_gpu import GPU, FakeCuda, fake_gpu

TRAININGS = {"train@warmup": 1, "train@taught": 1, "adore@tower": 2, "study@indexes": 2, "reranker@small": 1, "pretrain@costa": 1}
BATCHES = ["encode@warmup", "mine@warmup", "teacher@ce", "rerank@crossed", "rescore@again"]
Waits = list[tuple[str, list[str]]]  # between two signs of progress, for what the program waited


def run(small: Any, stage: str, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Run a stage on a GPU; what made the program wait for it."""
    records: Waits = []
    small.write("runtime.yaml", "device: cuda:0\ncheckpoint_seconds: 1000\n")
    with fake_gpu() as gpu:
        advance = Progress.advance

        def record_and_advance(self: Progress, *args: Any, **kwargs: Any) -> None:
            records.append((self.what, gpu.waited.copy()))
            gpu.waited.clear()
            advance(self, *args, **kwargs)

        monkeypatch.setattr(Progress, "advance", record_and_advance)
        result = small.stage(stage, *small.elsewhere(stage, "gpu"))
    assert result.status == 0, result.err
    firsts = {label: number for number, (label, _) in reversed(list(enumerate(records)))}  # before them, weights are sent
    return [
        (label, [wait for wait in waits if number != firsts[label] or not wait.startswith("sent ")])
        for number, (label, waits) in enumerate(records)
    ]


@pytest.mark.parametrize(("stage", "most"), TRAININGS.items())
def test_a_training_step_waits_once(small: Any, stage: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query-side training twice: lists are made on the CPU from what its search found."""
    name = stage.replace("@", " ")
    steps = [waited for label, waited in run(small, stage, monkeypatch) if label.startswith(name)]
    assert steps
    for waited in steps:
        assert len(waited) <= most, waited


@pytest.mark.parametrize("stage", BATCHES)
def test_a_batch_waits_once(small: Any, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = run(small, stage, monkeypatch)
    assert any(waited for _, waited in records), "the stage used the GPU"
    for label, waited in records:
        piece = rerank.QUERIES if label.startswith("rerank ") else 1  # a piece's queries are scored one by one before the first is shown
        assert len(waited) <= (0 if label == "search" else piece), (label, waited)


def test_analyses_run(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(small, "analyses@seen", monkeypatch)


def test_vectors_are_those_of_the_cpu(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(small, "encode@warmup", monkeypatch)
    ours, theirs = (
        np.concatenate([np.load(shard) for shard in sorted((small.folder / folder).glob("[0-9]*.npy"))])
        for folder in ("gpu/data/embeddings/warmup", "data/embeddings/warmup")
    )
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosine.min() > 0.995, "bf16 beside fp32"


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    """Otherwise the tests above show nothing."""
    with fake_gpu() as gpu:
        on_gpu, on_cpu = torch.ones(3, device=GPU), torch.ones(3)
        assert on_gpu.device == GPU and isinstance(on_gpu + 1, FakeCuda) and not gpu.waited
        with pytest.raises(RuntimeError, match="one device"):
            on_gpu + on_cpu
        with pytest.raises(TypeError, match="numpy"):
            on_gpu.numpy()
        assert not gpu.waited
        for wait in (
            lambda: float(on_gpu.sum()),
            lambda: on_gpu.cpu(),
            lambda: on_gpu[on_gpu > 0],
            lambda: on_gpu.nonzero(),
            lambda: on_gpu.tolist(),
        ):
            gpu.waited.clear()
            wait()
            assert len(gpu.waited) == 1
        assert on_gpu.to("cpu").numpy().tolist() == [1.0, 1.0, 1.0]
        layer = torch.nn.Linear(3, 2).to(GPU)
        layer(on_gpu.requires_grad_()).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.device == GPU
        assert (on_gpu.grad.cpu() == layer.weight.detach().sum(0).cpu()).all()
