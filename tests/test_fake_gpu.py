"""Every stage that uses a GPU, on a stand-in for one: no tensor is on the wrong device, and the program seldom waits for it."""

from typing import Any

import pytest

from tasks.core.stage.progress import Progress
from tests.fake_gpu import FakeGpu, fake_gpu

TRAININGS = ["train@warmup", "train@taught", "adore@tower", "reranker@small", "pretrain@costa"]
OTHERS = ["encode@warmup", "index@warmup", "mine@warmup", "study@indexes", "teacher@ce", "rerank@crossed", "rescore@again", "analyses@seen"]


def waits(monkeypatch: pytest.MonkeyPatch, small: Any, stage: str) -> tuple[list[tuple[str, list[str]]], FakeGpu]:
    """Run a stage on a GPU; what made the program wait for it, place by place, between two signs of progress of one kind."""
    seen: list[tuple[str, list[str]]] = []
    small.write("runtime.yaml", "device: cuda:0\ncheckpoint_seconds: 1000\n")
    with fake_gpu() as gpu:
        real = Progress.advance

        def advance(self: Progress, *args: Any, **kwargs: Any) -> None:
            seen.append((self.what, gpu.waited))
            gpu.waited = []
            real(self, *args, **kwargs)

        monkeypatch.setattr(Progress, "advance", advance)
        done = small.stage(stage, *small.elsewhere(stage, "gpu"))
    assert done.status == 0, done.err
    return seen, gpu


@pytest.mark.parametrize("stage", TRAININGS)
def test_a_training_step_waits_once(small: Any, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _ = waits(monkeypatch, small, stage)
    print(seen)


@pytest.mark.parametrize("stage", OTHERS)
def test_a_stage_runs_on_a_gpu(small: Any, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _ = waits(monkeypatch, small, stage)
    print(seen)
