"""The loop: exact resume, bad numbers, clipping, curves."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tasks.core.stage.draws import batch_places, draw_seed
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest
from tasks.core.training import loop
from tasks.core.training.figures import read_figures
from tasks.core.training.loop import (
    CHECKPOINT,
    Journal,
    Schedule,
    Steps,
    checkpoint_step,
    fit,
    load_state,
    read_state,
    save_checkpoint,
    save_state,
    state_tensors,
)
from tasks.core.training.optimizers import make_optimizer

STEPS = 12


class Killed(Exception):
    pass


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1))


def work(module: nn.Sequential, dies_at: int | None = None, bad_at: int | None = None) -> Steps[int]:
    def backward(step: int) -> dict[str, float]:
        if step == dies_at:
            raise Killed
        torch.manual_seed(draw_seed(7, step))
        loss = module(torch.randn(8, 6)).pow(2).mean() * (float("nan") if step == bad_at else 1.0)
        loss.backward()
        return {"loss": float(loss.detach())}

    return Steps.undrawn(backward)


def train(folder: Path, optimizer: str = "adamw", seconds: float = 0.0, clip: float = 1.0, **trouble: int) -> nn.Sequential:
    module = model()
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    curves = folder / f"curves{len(list(folder.iterdir()))}"
    curves.mkdir()
    chosen = make_optimizer(optimizer, module, 0.05, 0.01)  # type: ignore[arg-type]
    fit(module, chosen, work(module, **trouble), Schedule(STEPS, 0.2, clip), Journal("test", folder / "scratch", curves, seconds))
    folder.joinpath("curves").symlink_to(curves)
    folder.joinpath("optimizer").write_text(str({n: t.tolist() for n, t in sorted(state_tensors(module, chosen).items())}))
    return module


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("dies_at", [1, 5, 11])
def test_resumed_equals_undisturbed(tmp_path: Path, optimizer: str, dies_at: int, capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(tmp_path / "whole", optimizer, seconds=1e9)
    with pytest.raises(Killed):
        train(tmp_path / "killed", optimizer, dies_at=dies_at)
    assert (tmp_path / "killed" / "scratch" / CHECKPOINT).exists()
    resumed = train(tmp_path / "killed", optimizer)
    assert f"resuming from step {dies_at}" in capsys.readouterr().out
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert (tmp_path / "whole" / "optimizer").read_text() == (tmp_path / "killed" / "optimizer").read_text()
    assert folder_digest((tmp_path / "whole" / "curves").resolve()) == folder_digest((tmp_path / "killed" / "curves").resolve())


@pytest.mark.parametrize(
    "harm", ["cut in the header", "cut in the weights", "empty", "zeros", "one bit of a weight", "one digit of the step"]
)
def test_corrupt_checkpoint_is_reported_and_training_starts_again(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(tmp_path / "whole", seconds=1e9)
    with pytest.raises(Killed):
        train(tmp_path / "killed", dies_at=6)
    path = tmp_path / "killed" / "scratch" / CHECKPOINT
    assert checkpoint_step(path) == 6
    held = path.read_bytes()
    harmed = {
        "cut in the header": held[:50],
        "cut in the weights": held[:-20],
        "empty": b"",
        "zeros": held[:-64] + bytes(64),
        "one bit of a weight": held[:-5] + bytes([held[-5] ^ 1]) + held[-4:],
        "one digit of the step": held.replace(b'"step":"6"', b'"step":"4"'),
    }[harm]
    assert harmed != held
    path.write_bytes(harmed)
    again = train(tmp_path / "killed")
    assert "corrupt" in capsys.readouterr().out
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert folder_digest((tmp_path / "whole" / "curves").resolve()) == folder_digest((tmp_path / "killed" / "curves").resolve())


@pytest.mark.parametrize(("total", "size"), [(10, 4), (10, 10), (7, 3), (1, 1), (5, 4)])
def test_the_order_of_an_epoch(total: int, size: int) -> None:
    """Batches laid end to end are one permutation after the other; the formula is that of earlier versions, digit for digit."""
    places = np.concatenate([batch_places(total, size, 3, step) for step in range(3 * total)])
    for epoch in range(3 * size):
        order = places[epoch * total : (epoch + 1) * total].tolist()
        assert order == np.random.default_rng(draw_seed(3, 1, epoch)).permutation(total).tolist()


def test_a_loss_that_is_not_finite_is_one_line_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test: step 6: loss nan.*the last checkpoint is kept"):
        train(tmp_path, bad_at=6)
    assert (tmp_path / "scratch" / CHECKPOINT).exists()


def test_gradients_are_clipped_before_the_step(tmp_path: Path) -> None:
    """With Lamb's first step w -= lr (...) a clip changes nothing visible; with plain SGD it bounds the step exactly."""
    module = model()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    curves = tmp_path / "curves"
    curves.mkdir()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    fit(module, optimizer, work(module), Schedule(1, 0.0, 1e-3), Journal("test", tmp_path, curves, 1e9))
    moved = (torch.cat([p.detach().flatten() for p in module.parameters()]) - before).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("first", [0, 2])
def test_a_step_is_drawn_while_a_gpu_computes_the_one_before(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its work was sent, and before its figures are read, which waits for it; nothing is drawn that is not trained on."""
    module, events = model(), list[str]()
    optimizer = make_optimizer("adamw", module, 0.05, 0.01)

    def draw(step: int) -> str:
        events.append(f"draw {step}")
        return f"batch {step}"

    def backward(step: int, drawn: str) -> dict[str, float]:
        assert drawn == f"batch {step}"
        events.append(f"work {step}")
        return work(module)(step)

    def watched(figures: dict[str, float]) -> dict[str, float]:
        events.append("read")
        return read_figures(figures)

    if first:
        work(module)(0)
        optimizer.step()
        save_checkpoint(tmp_path / CHECKPOINT, first, [], module, optimizer)
    monkeypatch.setattr(loop, "read_figures", watched)
    (tmp_path / "curves").mkdir()
    fit(module, optimizer, Steps(draw, backward), Schedule(4, 0.0, 1.0), Journal("test", tmp_path, tmp_path / "curves", 1e9))
    expected = [f"draw {first}"]
    for step in range(first, 4):
        expected += [f"work {step}", *([f"draw {step + 1}"] if step < 3 else []), "read"]
    assert events == expected


def test_checkpoints_leave_most_of_the_time_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is due 10 s after one that took nothing, 20 times as long as it took after one that took 3 s; with 0 s, always."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock.now)

    def due(pace: loop.Pace, now: float) -> bool:
        clock.now = now
        return pace.due()

    pace, always = loop.Pace(10), loop.Pace(0)
    assert [due(pace, now) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    for one in (pace, always):
        clock.now = 110.0
        with one:
            clock.now = 113.0
    assert [due(pace, now) for now in (123.0, 172.9, 173.0)] == [False, False, True]
    assert due(always, 113.0)


def test_curves_hold_every_step(tmp_path: Path) -> None:
    train(tmp_path)
    lines = (tmp_path / "curves" / "plots" / "metrics" / "train" / "loss.tsv").read_text().splitlines()
    assert lines[0] == "step\tloss"
    assert [int(line.split("\t")[0]) for line in lines[1:]] == list(range(STEPS))


def test_optimizer_state_is_restored() -> None:
    module = model()
    optimizer = make_optimizer("adamw", module, 0.05, 0.01)
    work(module)(0)
    optimizer.step()
    other = make_optimizer("adamw", module, 0.05, 0.01)
    load_state(state_tensors(module, optimizer), module, other)
    for name, tensor in state_tensors(module, optimizer).items():
        assert torch.equal(tensor, state_tensors(module, other)[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_continued_chain_equals_one_long_training(tmp_path: Path, optimizer: str) -> None:
    """Five steps and seven, state and weights through their files, one schedule over both: the twelve steps at once, bit for bit."""
    whole = train(tmp_path / "whole", optimizer, seconds=1e9)
    module, before = model(), 0
    for steps in (5, 7):
        folder = tmp_path / str(steps)
        (folder / "curves").mkdir(parents=True)
        (folder / "state").mkdir()
        chosen = make_optimizer(optimizer, module, 0.05, 0.01)  # type: ignore[arg-type]
        if before:
            tensors, behind = read_state(tmp_path / str(before) / "state")
            assert behind == before
            load_state(tensors, module, chosen)
        one = work(module)
        fit(
            module,
            chosen,
            Steps.undrawn(lambda step, one=one, before=before: one(before + step)),
            Schedule(steps, 0.2, 1.0, before, STEPS),
            Journal("test", folder, folder / "curves", 1e9),
        )
        before += steps
        save_state(folder / "state", before, module, chosen)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, module.state_dict()[name]), name


def test_seeds_of_nearby_keys_differ() -> None:
    seeds = {draw_seed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert all(0 <= s < 2**63 for s in seeds)
