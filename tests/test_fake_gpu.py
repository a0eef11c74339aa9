"""Every stage that uses a GPU, on a stand-in for one: no tensor is on the wrong device, and the program seldom waits for it."""

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tasks.core.machine.devices import choose_device
from tasks.core.params.runtime import Runtime
from tasks.core.stage.progress import Progress
from tasks.core.training.unpadded import Unpadded
from tasks.rerank import __main__ as rerank
from tests.fake_gpu import GPU, FakeCuda, fake_gpu

TRAININGS = {"train@warmup": 1, "train@taught": 1, "adore@tower": 2, "study@indexes": 2, "reranker@small": 1, "pretrain@costa": 1}
BF16 = [f"{entry}.precision" for entry in ("rounds.warmup", "rounds.taught", "adore.tower", "study.indexes")]  # the default
BATCHES = ["encode@warmup", "mine@warmup", "teacher@ce", "rerank@crossed", "rescore@again"]
EXACT = ["--vectors", "data/embeddings/warmup"]  # of a search in place of the index's
VALIDATION = {"validate_every": 1, "validation_queries": 5, "validation_documents": 20}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("train@warmup", {"rounds.warmup.precision": "fp32"}),
    ("train@warmup", {f"rounds.warmup.{key}": value for key, value in VALIDATION.items()}),
    ("train@warmup", {"rounds.warmup.guide": "init"}),
    ("train@warmup", {"rounds.warmup.optimizer": "lamb"}),
    ("train@warmup", {"rounds.warmup.lora": {}}),
    ("train@warmup", {"rounds.warmup.projector": "nonlinear"}),
    ("train@warmup", {"rounds.warmup.start_share": 0.5}),
    ("train@taught", {"rounds.taught.loss": "kl", "rounds.taught.nll_weight": 0.2}),
    ("train@taught", {"rounds.taught.optimizer_from": "moments"}),
    ("pretrain@costa", {"pretrain.costa.objective": "mlm", "pretrain.costa.optimizer": "lamb"}),
    ("pretrain@costa", {"pretrain.costa.objective": "retromae"}),
    ("pretrain@costa", {"pretrain.costa.objective": "ict"}),
    ("adore@tower", {"adore.tower.precision": "fp32"}),
    ("adore@tower", {"adore.tower.lists": "refreshed", "adore.tower.refresh": 1, "adore.tower.loss": "ranknet"}),
    ("adore@tower", {"adore.tower.lists": "random", "adore.tower.loss": "ranknet"}),
    ("encode@warmup", {"encode.precision": "fp32", "encode.dtype": "float16"}),
    ("retrieve@warmup", {}),
]
Waits = list[tuple[str, list[str]]]  # between two signs of progress, for what the program waited


def run(small: Any, stage: str, monkeypatch: pytest.MonkeyPatch, *arguments: str, **settings: Any) -> Waits:
    """Run a stage on a GPU, with `settings` of params.yaml; what made the program wait for it."""
    records: Waits = []
    for key, value in (dict.fromkeys(BF16, "bf16") | settings).items():
        small.set(key, value)
    small.write("runtime.yaml", "device: cuda:0\ncheckpoint_seconds: 1000\n")
    with fake_gpu() as gpu:
        advance = Progress.advance

        def record_and_advance(self: Progress, *args: Any, **kwargs: Any) -> None:
            records.append((self.what, gpu.waited.copy()))
            gpu.waited.clear()
            advance(self, *args, **kwargs)

        monkeypatch.setattr(Progress, "advance", record_and_advance)
        result = small.stage(stage, *small.elsewhere(stage, "gpu"), *arguments)
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


def test_exact_mining_waits_for_nothing_between_batches(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds what it finds on the CPU."""
    exact = {"mine.warmup.search": "embeddings", "mine.warmup.precision": "fp32"}
    records = run(small, "mine@warmup", monkeypatch, *EXACT, **exact)
    assert [waited for label, waited in records if label == "search"] == [[]]
    small.write("runtime.yaml", "device: cpu\n")
    assert small.stage("mine@warmup", *small.elsewhere("mine@warmup", "cpu"), *EXACT).status == 0
    ours, theirs = (pq.read_table(small.folder / place / "data/negatives/warmup/train.parquet") for place in ("gpu", "cpu"))
    assert ours.drop(["score"]).equals(theirs.drop(["score"]))
    np.testing.assert_allclose(ours["score"], theirs["score"], rtol=1e-4)


@pytest.mark.parametrize(("stage", "settings"), VARIANTS)
def test_other_settings_run(small: Any, stage: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(small, stage, monkeypatch, **settings)


def test_the_first_token_alone_is_computed_in_a_last_layer(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooling cls without padding: one query of attention for each text."""
    small.set("base.pooling", "cls")
    assert small.stage("base").status == 0
    calls: list[bool] = []
    hidden = Unpadded.hidden

    def record_and_compute(self: Unpadded, *args: Any) -> Any:
        calls.append(args[2])
        return hidden(self, *args)

    monkeypatch.setattr(Unpadded, "hidden", record_and_compute)
    assert run(small, "train@warmup", monkeypatch)
    assert calls and all(calls)


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
        choose_device(Runtime(device="cuda"))
        scores = torch.rand(5, 7, device=GPU)
        for unordered in (
            lambda: scores.cumsum(0),
            lambda: scores.median(0),
            lambda: torch.bincount(torch.ones(3, dtype=torch.int64, device=GPU), weights=torch.ones(3, device=GPU)),
        ):
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                unordered()
        assert torch.ones(3, dtype=torch.int64, device=GPU).cumsum(0).tolist() == [1, 2, 3]
        gpu.waited.clear()
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
