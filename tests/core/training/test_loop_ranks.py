"""Who measures and writes in the loop of several ranks, cheap dropout on a CPU alone, and a training of no step."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tasks.core.training import loop
from tasks.core.training.checkpoints import checkpoint_step, read_checkpoint
from tasks.core.training.loop import Journal, Schedule, Steps, Validation, fit
from tasks.core.workers.gang import Gang
from tests.core.training.test_loop import Slope
from tests.fake_gpu import GPU, fake_gpu
from tests.gangs import as_ranks


def steps_of(module: Slope, share: float = 1.0) -> Steps[int]:
    def backward(_: int) -> dict[str, float]:
        for layer in (module.left, module.right):
            layer.weight.grad = torch.full_like(layer.weight, -share)
        return {"loss": 1.0}

    return Steps.undrawn(backward)


def journal(folder: Path) -> Journal:
    (folder / "curves").mkdir(parents=True)
    return Journal("slide", folder, folder / "curves", 0.0)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("patience", "steps"), [(None, 5), (2, 3)])
def test_the_first_rank_alone_measures_and_writes_and_all_end_at_its_word(patience: int | None, steps: int, tmp_path: Path) -> None:
    values, ranks_measuring = [0.1, 0.5, 0.3, 0.2, 0.9, 0.4], list[int]()

    def rank(gang: Gang) -> tuple[int, float]:
        module = Slope()

        def measure() -> float:
            ranks_measuring.append(gang.rank)
            return values[round(module.places()[0])]

        validation = Validation("validation/x", measure, 1, keep_best=False, patience=patience)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        rank_journal, schedule = journal(tmp_path / str(gang.rank)), Schedule(5, 0.0, 1e9, 0, 10**9)
        return fit(module, optimizer, steps_of(module, 0.5), schedule, rank_journal, validation=validation, gang=gang), module.places()[0]

    assert as_ranks(2, rank) == [(steps, pytest.approx(steps, rel=1e-5))] * 2
    assert ranks_measuring == [0] * (steps + 1)
    assert files(tmp_path / "1") == [] and {"curves/plots/metrics/validation/x.tsv", "checkpoint.safetensors"} <= {*files(tmp_path / "0")}


def test_a_bad_loss_on_two_ranks_leaves_one_checkpoint(tmp_path: Path) -> None:
    def rank(gang: Gang) -> str:
        module = Slope()
        optimizer, rank_journal = torch.optim.SGD(module.parameters(), lr=1.0), journal(tmp_path / str(gang.rank))
        steps = steps_of(module, 0.5)
        bad = Steps.undrawn(lambda step: {**steps(step), "loss": math.nan if step == 2 else 1.0})
        with pytest.raises(loop.UserError) as error:
            fit(module, optimizer, bad, Schedule(5, 0.0, 1e9, 0, 10**9), rank_journal, gang=gang)
        return str(error.value)

    assert all(line.startswith("slide: step 2: loss nan") for line in as_ranks(2, rank))
    assert checkpoint_step(tmp_path / "0/checkpoint.safetensors") == 2 and files(tmp_path / "1") == []
    checkpoint = read_checkpoint(tmp_path / "0/checkpoint.safetensors")
    assert checkpoint is not None and checkpoint[0]["weights.left.weight"].item() == pytest.approx(2)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dropout_is_cheap_on_a_cpu_alone(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the loop's own around each step's backward pass, and around nothing else."""
    entered, events = list[bool](), list[bool]()

    class Watched:
        def __enter__(self) -> None:
            entered.append(True)

        def __exit__(self, *_: object) -> None:
            entered.pop()

    monkeypatch.setattr(loop, "CheapDropout", Watched)
    with fake_gpu():
        module = Slope().to(GPU if device == "cuda" else torch.device("cpu"))
        steps = steps_of(module)

        def backward(step: int, drawn: bool) -> dict[str, float]:
            events.extend([drawn, bool(entered)])
            return dict(steps(step))

        optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        fit(module, optimizer, Steps(lambda _: bool(entered), backward), Schedule(2, 0.0, 1.0), journal(tmp_path))
    assert events == [False, device == "cpu"] * 2


def test_a_training_of_no_step_draws_nothing(tmp_path: Path) -> None:
    module = nn.Linear(1, 1)
    steps = Steps[int](lambda _: pytest.fail("drawn"), lambda *_: pytest.fail("trained"))
    assert fit(module, torch.optim.SGD(module.parameters(), lr=1.0), steps, Schedule(0, 0.0, 1.0, 3, 3), journal(tmp_path)) == 0


def test_one_number_of_a_weight_that_is_not_finite_is_enough(tmp_path: Path) -> None:
    """No checkpoint is written of such weights."""
    module = nn.Linear(3, 1)

    def backward(step: int) -> dict[str, float]:
        for weight in module.parameters():
            weight.grad = torch.zeros_like(weight)
        if step == 1:
            module.weight.data[0, 1] = math.inf
        return {"loss": math.nan if step == 1 else 1.0}

    with pytest.raises(loop.UserError, match="step 1: loss nan"):
        slide_journal = Journal("slide", tmp_path, journal(tmp_path).curves, 1e9)
        fit(module, torch.optim.SGD(module.parameters(), lr=1.0), Steps.undrawn(backward), Schedule(3, 0.0, 1.0), slide_journal)
    assert not (tmp_path / loop.CHECKPOINT).exists()


def test_ranks_that_end_with_different_weights_are_refused(tmp_path: Path) -> None:
    def rank(gang: Gang) -> str:
        module = Slope()
        steps = steps_of(module, 0.5)

        def backward(step: int) -> dict[str, float]:
            module.left.weight.data += gang.rank  # as a processor of another kind may round
            return dict(steps(step))

        optimizer, rank_journal = torch.optim.SGD(module.parameters(), lr=1.0), journal(tmp_path / str(gang.rank))
        with pytest.raises(loop.UserError) as error:
            fit(module, optimizer, Steps.undrawn(backward), Schedule(2, 0.0, 1.0), rank_journal, gang=gang)
        return str(error.value)

    assert all(line.startswith("slide: the workers ended with different weights (CRC-32 ") for line in as_ranks(2, rank))
